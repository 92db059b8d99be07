"""A sample has so many cases of each marked test, the same ones for one seed on all workers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_project import Project

TESTS = """
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
Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Gives the cases that a run with this seed and these options took, sorted."""
    project = Project(tmp_path)
    project.module("cases", TESTS)

    def run(seed: int, *options: str) -> list[str]:
        monkeypatch.setenv("HETCOMM_TEST_SEED", str(seed))
        code, printed = project.run("-rP", *options)
        assert code == 0, printed
        return sorted(re.findall(r"^<(\w+)>$", printed, re.MULTILINE))

    return run


def test_a_sample_has_as_many_cases_as_the_mark_says(run: Run) -> None:
    taken = run(1, "--sample")
    assert len(taken) == 3 + 2 + 1
    assert taken[-3:] == ["a", "b", "one"]
    assert run(1, "--sample", "-n", "2") == taken
    assert any(run(seed, "--sample") != taken for seed in range(2, 6))


def test_without_the_option_all_cases_run(run: Run) -> None:
    assert len(run(1)) == 10 + 2 + 1
