"""Ranks that are threads of one process, as in torch's multi-threaded tests and in torchft's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("threaded_world.py")


@pytest.mark.parametrize("size", [2, 3])
def test_every_thread_has_its_own_world(size: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), str(size)], capture_output=True, text=True, timeout=200
    )
    assert ended.stdout.splitlines() == ["ok"] * size, ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stderr
