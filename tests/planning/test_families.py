"""Models of known families, split by a layout, have the losses of the unsplit ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import lookalikes
import pytest
import staged
from ranks import Job
from staged import OVERLAPPED, layout

CASES = {
    "overlapped": layout([[3, 6]], replicas=2, **OVERLAPPED),
    "interleaved": layout([[1, 2], [4, 6]], schedule="interleaved", **OVERLAPPED),
    "without a partition": layout([[2, 4, 6]], order=[2, 0, 1]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "llama"])
def test_losses_equal_the_unsplit_model(
    job: Callable[..., Job], tmp_path: Path, family: str, case: str
) -> None:
    chosen, make = CASES[case], partial(lookalikes.tied, family)
    ranks = job("a" * len(chosen.ranks), backend="gloo")
    staged.check(ranks, tmp_path / "layout.json", chosen, make, chosen.overlap_optimizer)
