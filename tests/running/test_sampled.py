"""A sample has as many cases of each test as the budget pays for, the same ones for one seed on all
workers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_project import Project
from sampled import BUDGET, LONG, RUNS, SHARE, count

TESTS = """
@pytest.mark.parametrize("case", range(10))
def test_of_costly_cases(case):
    print(f"<{case}>")

@pytest.mark.parametrize("case", "ab")
def test_of_few_cases(case):
    print(f"<{case}>")

def test_without_cases():
    print("<one>")
"""
TIMES = f"""
[case]
"tests/cases/test_cases.py::test_of_costly_cases" = {BUDGET / 3.1}
"tests/cases/test_cases.py::test_of_few_cases" = {BUDGET / 10}
"""
Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Gives the cases that a run with this seed and these options took, sorted."""
    project = Project(tmp_path)
    project.module("cases", TESTS)
    project.write("tests/times.toml", TIMES)

    def run(seed: int, *options: str) -> list[str]:
        monkeypatch.setenv("HETCOMM_TEST_SEED", str(seed))
        code, printed = project.run("-rP", *options)
        assert code == 0, printed
        return sorted(re.findall(r"^<(\w+)>$", printed, re.MULTILINE))

    return run


def test_a_sample_has_as_many_cases_as_the_budget_pays_for(run: Run) -> None:
    taken = run(1, "--sample")
    assert len(taken) == 3 + 2 + 1
    assert taken[-3:] == ["a", "b", "one"]
    assert run(1, "--sample", "-n", "2") == taken
    assert any(run(seed, "--sample") != taken for seed in range(2, 6))


def test_without_the_option_all_cases_run(run: Run) -> None:
    assert len(run(1)) == 10 + 2 + 1


@pytest.mark.parametrize(
    ("cost", "cases", "expected"),
    [
        (0.0, 700, 700),  # of a test without a stored cost
        (BUDGET / 2, 5, 2),
        (2 * BUDGET, 2, 1),
        (2 * BUDGET, 100, int(100 * SHARE)),
        (LONG, 1, 1),
    ],
)
def test_the_budget_says_how_many_cases_run(cost: float, cases: int, expected: int) -> None:
    assert {count(cost, cases, random.Random(seed)) for seed in range(20)} == {expected}


@pytest.mark.parametrize(("cost", "share"), [(1.5 * LONG, 1 / 1.5), (20 * LONG, RUNS)])
def test_a_long_case_runs_now_and_then(cost: float, share: float) -> None:
    runs = [count(cost, 1, random.Random(seed)) for seed in range(600)]
    assert set(runs) == {0, 1}
    assert abs(sum(runs) / len(runs) - share) < 0.1
    assert count(cost, 1, random.Random(0), whole=False) == 1
