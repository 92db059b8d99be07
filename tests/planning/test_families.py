"""Models of known families, split by a layout, have the losses of the unsplit ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import lookalikes
import pytest
import staged
from ranks import Job, check_texts, refusal, values
from staged import OVERLAPPED, layout

from hetcomm import plan

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


DIVIDED = {
    "one stage, tied": (layout([[6]], replicas=2, tensor=[2], **OVERLAPPED), True),
    "two stages": (layout([[3, 6]], tensor=[2, 2]), False),
    "an embedding alone": (layout([[1, 6]], tensor=[2, 1]), False),
}


@pytest.mark.parametrize("case", DIVIDED)
@pytest.mark.parametrize("family", lookalikes.DIVISIBLE)
def test_tensor_ranks_divide_known_families(
    job: Callable[..., Job], tmp_path: Path, family: str, case: str
) -> None:
    chosen, ties = DIVIDED[case]
    make = partial(lookalikes.divisible, family, ties)
    ranks = job("a" * len(chosen.ranks))
    staged.check(ranks, tmp_path / "layout.json", chosen, make, chosen.overlap_optimizer)


def refused(rank: int, size: int, path: Path) -> list[str]:
    job = plan.load(path)
    found = (lookalikes.gpt2(), lookalikes.llama(), lookalikes.llama(lookalikes.LlamaBlock))
    return [refusal(lambda: plan.split(model, job)) for model in found]  # noqa: B023


def test_layers_that_tensor_ranks_cannot_divide_are_refused(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    layout([[6]], tensor=[3]).save(tmp_path / "layout.json")
    expected = [
        "got GPT-2's Conv1D; pass a function of a layer and the tensor mesh",
        "got a block without self_attn.q_proj",
        r"tensor degrees that divide the model's num_attention_heads 2, got \[3\]",
    ]
    check_texts(values(job("aaa", backend="gloo"), refused, tmp_path / "layout.json"), expected)
