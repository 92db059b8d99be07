"""A GPT split by a layout has the losses of the unsplit model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import staged
from ranks import Job
from staged import layout

CASES = {
    "one stage": (layout([[6]]), 4),
    "data alone": (layout([[6]], replicas=3, order=[2, 0, 1]), 4),
    "unequal stages": (layout([[4, 6]]), 4),
    "ranks in another order": (layout([[1, 4, 6]], order=[2, 0, 1]), 4),
    "two replicas": (layout([[2, 6]], replicas=2, order=[3, 0, 2, 1]), 4),
    "three replicas": (layout([[3, 6]], replicas=3), 4),
    "four stages": (layout([[1, 2, 4, 6]], order=[1, 3, 0, 2]), 4),
    "gpipe": (layout([[1, 4, 6]], order=[2, 1, 0], schedule="gpipe"), 4),
    "recompute": (layout([[2, 6]], order=[1, 0], recompute=True), 4),
    "interleaved": (layout([[2, 3], [4, 8]], order=[1, 0], schedule="interleaved"), 6),
    "interleaved, two replicas": (
        layout([[1, 2], [3, 8]], replicas=2, order=[3, 0, 2, 1], schedule="interleaved"),
        6,
    ),
    "interleaved, one chunk": (layout([[2, 4, 8]], order=[1, 2, 0], schedule="interleaved"), 6),
    "unequal shares": (layout([[2, 6]], replicas=2, order=[3, 0, 2, 1], shares=(4, 2)), 4),
    "unequal shares, three replicas": (layout([[6]], replicas=3, shares=(1, 3, 2)), 4),
    "unequal shares, interleaved": (
        layout([[1, 2], [3, 8]], replicas=2, schedule="interleaved", shares=(2, 4)),
        6,
    ),
    "zero bubble": (layout([[2, 4, 8]], order=[1, 2, 0], schedule="zero_bubble"), 6),
    "zero bubble, two chunks": (layout([[2, 3], [4, 8]], order=[1, 0], schedule="zero_bubble"), 6),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_the_unsplit_model(job: Callable[..., Job], tmp_path: Path, case: str) -> None:
    chosen, blocks = CASES[case]
    ranks = job("a" * len(chosen.ranks), backend="gloo")
    staged.check(ranks, tmp_path / "layout.json", chosen, partial(staged.model, blocks))
