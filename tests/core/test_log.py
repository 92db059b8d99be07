"""The log goes to standard error, and stops no rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys

PROGRAM = """
import os, sys
from hetcomm import _core

os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
for number in range(20):
    _core.Communicator(_core.LocalStore(), 0, 1, 60.0, f"group {number}").leave()
print("done", flush=True)
sys.stdin.read(1)  # until the test has read from the pipe
_core.Communicator(_core.LocalStore(), 0, 1, 60.0, "the last").leave()
"""


def test_a_reader_that_stands_still_stops_no_rank() -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, "HETCOMM_LOG_LEVEL": "info"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == "done\n"  # the timeout of pytest bounds this
        assert set(os.read(process.stderr.fileno(), 1 << 17)) == set(b"x")  # the pipe has room
        process.stdin.close()
        log = process.stderr.read()
    assert process.returncode == 0
    lost = re.search(r"lost lines: (\d+)\n", log)
    assert lost and int(lost[1]) >= 20
    assert 'group "the last"' in log
    assert 'group "group 19"' not in log


# Python ignores SIGPIPE, other programs do not.
WITHOUT_READER = """
import signal, sys
from hetcomm import _core

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.stdin.read(1)  # until the pipe has no reader
_core.Communicator(_core.LocalStore(), 0, 1, 60.0, "the group").leave()
print("done", flush=True)
"""


def test_a_log_without_a_reader_ends_no_program() -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", WITHOUT_READER],
        env={**os.environ, "HETCOMM_LOG_LEVEL": "info"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stderr.close()
        process.stdin.close()
        assert process.stdout.read() == "done\n"
    assert process.returncode == 0
