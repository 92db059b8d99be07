"""Repeats tests on each other instruction set, because results must not depend on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import sampled

from hetcomm import _core

NEEDS = {"baseline": (), "avx2": ("avx2",), "avx512": ("avx512",)}

# Changed inputs of each codec: the tests that repeat here have already tried more.
FEWER = {"HETCOMM_TEST_FUZZED": "200"}


def others(test: Callable[..., None]) -> Callable[..., None]:
    """Repeats a test on the instruction sets that the tests themselves do not use."""
    names = [
        pytest.param(name, marks=pytest.mark.needs(*abilities))
        for name, abilities in NEEDS.items()
        if name != _core.instruction_set()
    ]
    return pytest.mark.parametrize("name", names)(test)


BOUND = 500.0  # seconds; below the limit of pytest for a test


def _python(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", *arguments]  # -P: the same sys.path as this process
    return subprocess.run(
        command,
        env={**os.environ, "HETCOMM_ISA": name, "PYTEST_ADDOPTS": "", **FEWER},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


def run_program(name: str, program: str) -> subprocess.CompletedProcess[str]:
    """Runs the text of a program on an instruction set."""
    return _python(name, "-c", program)


def ask(name: str) -> subprocess.CompletedProcess[str]:
    """The instruction set that a process with that setting reports."""
    return run_program(name, "from hetcomm import _core; print(_core.instruction_set())")


def run_tests(name: str, path: str) -> None:
    """Runs a sample of the tests of a file on an instruction set."""
    assert ask(name).stdout.strip() == name
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", sampled.OPTION]
    result = _python(name, "-m", "pytest", *options, "-k", "not instruction_set", path)
    assert result.returncode == 0, result.stdout + result.stderr
