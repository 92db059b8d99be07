"""bench/convergence.py: losses of trainings with codecs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench/convergence.py"


def convergence(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


@pytest.mark.needs("namespaces")
def test_each_codec_trains_from_the_same_weights(tmp_path: Path) -> None:
    report = tmp_path / "losses.json"
    few = ("--steps", "2", "--seeds", "1", "--batch", "4", "--codecs", "none,int8")
    done = convergence(*few, "--report", str(report))
    assert done.returncode == 0, done.stderr
    (plain,), (loss,) = json.loads(report.read_text()).values()
    assert loss != plain, "the codec changed nothing"
    assert abs(loss - plain) < 0.05
    assert "int8: mean" in done.stdout


def test_codecs_without_a_baseline_are_rejected() -> None:
    done = convergence("--codecs", "int8,int4")
    assert done.returncode == 2 and "expected none first" in done.stderr
