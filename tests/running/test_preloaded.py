"""Processes of preloaded.py are like other processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from preloaded import Preloaded, stand_in

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


def test_a_command_stands_for_the_interpreter(program: Path) -> None:
    variables = os.environ | {"WHAT": "a variable"}
    words = [stand_in(), "-P", "-u", program, "one"]
    done = subprocess.run(
        words, env=variables, input="a line\n", capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 3, done
    is_imported = find_spec("torch") is not None
    first, _, last = done.stdout.splitlines()
    assert (first, last) == (f"__main__ one a variable {is_imported}", "the end")
    assert done.stderr == "an error\nafter the interpreter: Quit\n"
    module = subprocess.run(
        [stand_in(), "-m", "program", "two"], cwd=program.parent, env=variables,
        input="\n", capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert module.stdout.startswith("__main__ two a variable"), module


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stand_in_and_its_fork_end_together(tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    with subprocess.Popen([stand_in(), program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        fork = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(number)
        assert process.wait(60) == -number
        assert select.select([fork], [], [], 60)[0], "the fork has not ended"
        os.close(fork)
