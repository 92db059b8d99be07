"""A pipeline with tied embeddings has the losses of the unsplit tied model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gpt
import pytest
import staged
import torch
from ranks import Job, check_texts, refusal, values
from staged import OVERLAPPED, layout

from hetcomm import plan
from hetcomm.plan import Layout

CASES = {
    "1f1b": layout([[2, 6]], order=[1, 0]),
    "gpipe, two replicas": layout([[2, 6]], replicas=2, schedule="gpipe", order=[3, 0, 2, 1]),
    "three stages": layout([[1, 4, 6]], order=[2, 0, 1]),
    "three replicas": layout([[3, 6]], replicas=3),
    "interleaved": layout([[1, 2], [3, 6]], replicas=2, schedule="interleaved"),
    "zero bubble": layout([[2, 6]], replicas=2, schedule="zero_bubble"),
    "unequal shares": layout([[2, 6]], replicas=2, shares=(4, 2)),
    "one stage": layout([[6]], replicas=2),
}
PARTITIONED = {
    "1f1b": layout([[2, 6]], replicas=2, order=[3, 0, 2, 1]),
    "one replica": layout([[2, 6]], **OVERLAPPED),
    "overlapped": layout([[2, 6]], replicas=2, order=[3, 0, 2, 1], **OVERLAPPED),
    "overlapped, three replicas": layout([[3, 6]], replicas=3, **OVERLAPPED),
    "overlapped, interleaved": layout(
        [[1, 2], [3, 6]], replicas=2, schedule="interleaved", **OVERLAPPED
    ),
    "overlapped, zero bubble": layout([[2, 6]], replicas=2, schedule="zero_bubble", **OVERLAPPED),
    "states divided": layout([[1, 4, 6]], replicas=2, optimizer_states="cluster"),
    "weights divided": layout([[2, 6]], replicas=2, weights="cluster", **OVERLAPPED),
    "unequal shares": layout([[2, 6]], replicas=2, shares=(2, 4), **OVERLAPPED),
    "one stage": layout([[6]], replicas=2, **OVERLAPPED),
}


def check(job: Callable[..., Job], path: Path, chosen: Layout, partitioned: bool) -> None:
    ranks = job("a" * len(chosen.ranks), backend="gloo")
    staged.check(ranks, path, chosen, partial(staged.model, 4, tied=True), partitioned)


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_the_unsplit_model(job: Callable[..., Job], tmp_path: Path, case: str) -> None:
    check(job, tmp_path / "layout.json", CASES[case], partitioned=False)


@pytest.mark.parametrize("case", PARTITIONED)
def test_losses_of_a_partition_equal_the_unsplit_model(
    job: Callable[..., Job], tmp_path: Path, case: str
) -> None:
    """With clipped gradients, so that the norm counts a tied parameter once."""
    check(job, tmp_path / "layout.json", PARTITIONED[case], partitioned=True)


def table(chunks: list[Any]) -> torch.Tensor | None:
    """The tied weights of this rank."""
    return next(
        (c.get_parameter(name).detach().clone() for c in chunks for name in c.tied.values()), None
    )


def trained(rank: int, size: int, path: Path) -> Any:
    """The tied weights after some steps by int8 gradients."""
    job = plan.load(path)
    chunks = plan.split(staged.model(4, tied=True), job)
    if not job.is_first:
        with torch.no_grad():
            for parameter in chunks[0].parameters():
                parameter += 1.0 * (rank + 1)
    optimizer = torch.optim.Adam([p for chunk in chunks for p in chunk.parameters()], lr=0.01)
    partition = plan.partition(chunks, optimizer, job)
    with partition.gathered():
        start = table(chunks)
    example = next(staged.batches())[0][: job.layout.micro_batch]
    schedule = plan.schedule(chunks, job, gpt.loss_of, example, partition)
    staged.steps(job, schedule, optimizer)
    partition.state_dict()
    with partition.gathered():
        end = table(chunks)
    assert start is not None and end is not None
    return torch.stack([start, end]).numpy()


def test_stages_keep_the_same_bits(job: Callable[..., Job], tmp_path: Path) -> None:
    """Also from unequal starts, and with a codec that rounds unlike sums on either stage."""
    path = tmp_path / "layout.json"
    layout([[2, 6]], replicas=2, order=[3, 0, 2, 1], codec="int8", **OVERLAPPED).save(path)
    found = values(job("abab"), trained, path)
    assert (found[0][0] != found[0][1]).any()
    for each in found[1:]:
        assert (each == found[0]).all()


def sums(rank: int, size: int, path: Path) -> list[Any]:
    """The tied gradients of a step, of two steps together, and after an evaluation. Before all
    these, an evaluation leaves none."""
    job = plan.load(path)
    chunks = plan.split(staged.model(4, tied=True), job)
    if job.is_last:
        with torch.no_grad():
            chunks[0].get_parameter("5.weight").zero_()
    tokens, targets = next(staged.batches())
    schedule = plan.schedule(chunks, job, gpt.loss_of, tokens[: job.layout.micro_batch])
    (name,) = chunks[0].tied.values()
    given = (tokens,) if job.is_first else ()
    last = {"target": targets, "losses": []} if job.is_last else {}
    found = []
    for run in (schedule.eval, schedule.step, schedule.step, schedule.eval):
        run(*given, **last)
        gradient = chunks[0].get_parameter(name).grad
        found.append(None if gradient is None else gradient.numpy().copy())
    assert found.pop(0) is None
    return found


def test_a_step_adds_to_the_gradients_of_earlier_steps(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    layout([[3, 6]]).save(tmp_path / "layout.json")
    found = values(job("aa", backend="gloo"), sums, tmp_path / "layout.json")
    alone = staged.model(4, tied=True)
    tokens, targets = next(staged.batches())
    gpt.loss_of(alone(tokens), targets).backward()
    expected = alone[0].tokens.weight.grad
    for once, twice, evaluated in found:
        assert once == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-7)
        assert twice == pytest.approx(2 * once, rel=1e-6)
        assert (evaluated == twice).all()


def unequal(rank: int, size: int, path: Path) -> str:
    job = plan.load(path)
    chunks = plan.split(staged.model(4, tied=True), job)
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.1)
    return refusal(lambda: plan.partition(chunks, optimizer, job))


def test_stages_that_divide_the_weights_unequally_are_refused(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    layout([[3, 6]], replicas=2, optimizer_states="host").save(tmp_path / "layout.json")
    found = values(job("aabc", backend="gloo"), unequal, tmp_path / "layout.json")
    text = "0.tokens.weight: expected all 2 groups of ranks that hold this tied parameter to divide"
    check_texts([found], [text] * 4)
