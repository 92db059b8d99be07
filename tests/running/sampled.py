"""A run with `--sample` takes as many cases of each test as the budget pays for, by the seed.

All cases of all tests take longer than continuous integration has. Runs with other seeds take other
cases. A long test of one case is left out of some runs.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest
from times import STORED, costs, function_of

OPTION = "--sample"
BUDGET = 2.0  # seconds of a run for the cases of one test; tests/times.toml has those of a case
SHARE = 0.15  # a run takes this part of the cases of any test, or more
LONG = 5.0  # seconds of a test of one case; a longer one may be left out
RUNS = 1 / 5  # the part of all runs that take the longest test


def count(cost: float, cases: int, choice: random.Random, whole: bool = True) -> int:
    """How many cases of a test a run takes. cost: seconds of a case. whole: of a run of all
    tests, which may leave out a test."""
    if cases == 1:
        return int(not whole or cost <= LONG or choice.random() < max(RUNS, LONG / cost))
    paid_for = int(BUDGET / cost) if cost else cases
    return min(cases, max(paid_for, math.ceil(SHARE * cases)))


class Sampled:
    """Keeps the cases that the budget pays for, and deselects the rest."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        seconds = costs(config.rootpath / STORED)
        cases: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            cases[function_of(item.nodeid)].append(item)
        whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
        kept: set[pytest.Item] = set()
        for test, all_cases in cases.items():
            choice = random.Random(f"{self.seed} {test}")
            number = count(seconds.get(test, 0.0), len(all_cases), choice, whole)
            kept.update(choice.sample(all_cases, number))
        if left_out := [item for item in items if item not in kept]:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item in kept]
