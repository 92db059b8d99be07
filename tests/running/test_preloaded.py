"""Processes of preloaded.py are like other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from preloaded import Preloaded

PROGRAM = """\
import atexit, ctypes, os, sys
atexit.register(print, "the end", flush=True)
c = ctypes.CDLL(None)
c.strdup.restype = ctypes.c_void_p
c.on_exit(c.psignal, ctypes.c_void_p(c.strdup(b"after the interpreter")))  # exit code 3: "Quit"
print(__name__, *sys.argv[1:], os.environ["WHAT"], "torch" in sys.modules, flush=True)
print(sys.stdin.readline().strip(), len(os.listdir("/proc/self/fd")), flush=True)
print("an error", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def start(program: Path, *arguments: str) -> Preloaded:
    with (program.parent / "errors").open("w") as errors:
        return Preloaded(program, arguments, os.environ | {"WHAT": "a variable"}, errors)


def test_a_program_has_its_arguments_environment_and_files(program: Path) -> None:
    process = start(program, "one", "two")
    assert process.poll() is None
    process.stdin.write("a line\n")
    process.stdin.flush()
    assert process.wait(60) == 3
    with subprocess.Popen(
        [sys.executable, program], env=os.environ | {"WHAT": ""}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as plain:  # fmt: skip
        descriptors = plain.communicate("\n")[0].splitlines()[1].split()[-1]
    lines = process.stdout.read().splitlines()
    is_imported = find_spec("torch") is not None
    expected = [f"__main__ one two a variable {is_imported}", f"a line {descriptors}", "the end"]
    assert lines == expected
    assert (program.parent / "errors").read_text() == "an error\nafter the interpreter: Quit\n"


def test_a_process_can_be_killed(program: Path) -> None:
    process = start(program)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert process.poll() == process.returncode == -signal.SIGKILL
    process.kill()  # a process that has ended
