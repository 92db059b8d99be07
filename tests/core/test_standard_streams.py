"""Standard streams that are missing, as where daemons start programs, or full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from hetcomm import _core
with open(sys.argv[1], "w") as told:
    print(*(os.readlink(f"/proc/self/fd/{number}") for number in range(3)), file=told)
"""


def test_no_socket_takes_the_place_of_a_missing_stream(tmp_path: Path) -> None:
    """The log would go into that socket."""
    told = tmp_path / "told"
    command = [sys.executable, "-P", "-c", PROGRAM, str(told)]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True, timeout=60)
    assert told.read_text().split() == ["/dev/null"] * 3


@pytest.mark.parametrize("arguments", ["topo --json", "topo", "dump --help"])
def test_a_full_output_is_one_line(arguments: str) -> None:
    command = [sys.executable, "-P", "-m", "hetcomm", *arguments.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=os.environ | {"HETCOMM_LOG_LEVEL": "error"},
        )
    assert done.returncode == 2
    assert done.stderr.startswith("hetcomm: cannot write: [Errno 28] ")
    assert done.stderr.count("\n") == 1, done.stderr
