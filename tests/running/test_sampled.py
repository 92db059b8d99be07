"""A sample has so many cases of each marked test, the same ones for one seed on all workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = """
import pytest

@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", range(10))
def test_of_many_cases(case):
    print(f"<{case}>")

@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", "ab")
def test_of_few_cases(case):
    print(f"<{case}>")

def test_without_cases():
    print("<one>")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_cases.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text((HERE.parent / "conftest.py").read_text())
    (tmp_path / "skips.toml").write_text("")
    options = f'pythonpath = ["{HERE}"]\nmarkers = ["needs", "alone", "slow", "sampled"]\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{options}")
    return tmp_path


def cases(project: Path, seed: int, *words: str) -> list[str]:
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-rP", *words]
    environment = os.environ | {"HETCOMM_TEST_SEED": str(seed)}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.findall(r"^<(\w+)>$", done.stdout, re.MULTILINE))


def test_a_sample_has_as_many_cases_as_the_mark_says(project: Path) -> None:
    taken = cases(project, 1, "--sample")
    assert len(taken) == 3 + 2 + 1
    assert taken[-3:] == ["a", "b", "one"]
    assert cases(project, 1, "--sample", "-n", "2") == taken
    assert any(cases(project, seed, "--sample") != taken for seed in range(2, 6))


def test_without_the_option_all_cases_run(project: Path) -> None:
    assert len(cases(project, 1)) == 10 + 2 + 1
