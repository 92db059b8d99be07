"""A run with `--sample` takes some of the cases of large tests, by the seed of the run.

Each case of such a test takes the same way through hetcomm with other values. All cases together
take longer than continuous integration has, and runs with other seeds take other cases.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

OPTION = "--sample"


class Sampled:
    """Of the cases of a test marked `sampled(count)`, keeps `count` and deselects the rest."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        cases: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            if item.get_closest_marker("sampled"):
                cases[item.nodeid.partition("[")[0]].append(item)
        left_out: set[pytest.Item] = set()
        for test, all_cases in cases.items():
            (count,) = all_cases[0].get_closest_marker("sampled").args
            choice = random.Random(f"{self.seed} {test}")
            kept = choice.sample(all_cases, min(count, len(all_cases)))
            left_out.update(set(all_cases) - set(kept))
        if left_out:
            config.hook.pytest_deselected(items=[item for item in items if item in left_out])
            items[:] = [item for item in items if item not in left_out]
