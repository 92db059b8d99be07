"""Tests run once more on each instruction set, because results must not depend on it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAMES = ("baseline", "avx2", "avx512")

inside = pytest.mark.skipif("HETCOMM_ISA" in os.environ, reason="runs inside this very test")


def run_tests(name: str, path: str) -> None:
    """The tests of a file on an instruction set; skips where the processor lacks it."""
    command = [sys.executable, "-P"]  # -P: imports what this process imports
    environment = {**os.environ, "HETCOMM_ISA": name}
    ask = "from hetcomm import _core; print(_core.instruction_set())"
    answer = subprocess.run(
        [*command, "-c", ask],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if answer.returncode != 0:
        assert "HETCOMM_ISA: expected an instruction set of this processor" in answer.stderr
        pytest.skip(f"this processor has no {name}")
    assert answer.stdout.strip() == name
    result = subprocess.run(
        [*command, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
