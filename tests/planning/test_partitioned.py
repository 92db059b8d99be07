"""A partitioned pipeline has the losses of the unsplit model, with its gradients clipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gpt
import pytest
import staged
import torch
import torch.distributed as dist
from ranks import Job, check_texts, refusal, values
from staged import OVERLAPPED, layout

from hetcomm import plan
from hetcomm.partitioning import collectives

CASES = {
    "summed at the step": layout([[2, 6]], replicas=2, order=[3, 0, 2, 1]),
    "overlapped": layout([[2, 6]], replicas=2, order=[3, 0, 2, 1], **OVERLAPPED),
    "overlapped, three replicas": layout([[6]], replicas=3, order=[2, 0, 1], **OVERLAPPED),
    "overlapped, one replica": layout([[2, 6]], **OVERLAPPED),
    "overlapped, interleaved": layout(
        [[1, 2], [3, 6]], replicas=2, schedule="interleaved", order=[3, 0, 2, 1], **OVERLAPPED
    ),
    "overlapped, zero bubble": layout(
        [[2, 6]], replicas=2, schedule="zero_bubble", order=[3, 0, 2, 1], **OVERLAPPED
    ),
    "overlapped, recomputed": layout([[2, 6]], replicas=2, recompute=True, **OVERLAPPED),
    "unequal shares": layout([[2, 6]], replicas=2, shares=(2, 4)),
    "unequal shares, overlapped": layout([[2, 6]], replicas=2, shares=(4, 2), **OVERLAPPED),
    "states divided": layout([[2, 6]], replicas=2, optimizer_states="cluster"),
    "weights divided": layout(
        [[2, 6]], replicas=2, order=[3, 0, 2, 1], weights="cluster", **OVERLAPPED
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_the_unsplit_model(job: Callable[..., Job], tmp_path: Path, case: str) -> None:
    chosen, make = CASES[case], partial(staged.model, 4)
    ranks = job("a" * len(chosen.ranks), backend="gloo")
    staged.check(ranks, tmp_path / "layout.json", chosen, make, partitioned=True)
    assert staged.reference(make) != pytest.approx(staged.reference(make, clip=True), rel=1e-3)


def traffic(rank: int, size: int, path: Path) -> list[Any]:
    """The ranks among which the collectives of a step run, and their codecs. Also those of data."""
    job = plan.load(path)
    chunks = plan.split(staged.model(4), job)
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.1)
    partition = plan.partition(chunks, optimizer, job)
    example = next(staged.batches())[0][: job.layout.micro_batch]
    schedule = plan.schedule(chunks, job, gpt.loss_of, example, partition)
    found = []

    def noted(name: str, call: Any, codec_of: Callable[[Any], str | None]) -> Any:
        def start(out: Any, given: Any, along: Any, encoding: Any, *key: str) -> Any:
            if along.size > 1:
                ranks = dist.get_process_group_ranks(along.group)
                found.append((name, tuple(ranks), codec_of(encoding)))
            return call(out, given, along, encoding, *key)

        return start

    collectives.gather = noted("all", collectives.gather, lambda codec: codec)
    collectives.scatter_sum = noted("reduce", collectives.scatter_sum, lambda each: each.codec)
    staged.steps(job, schedule, optimizer)
    return [set(found), len(found), dist.get_process_group_ranks(job.data_group)]


def test_the_optimizer_uses_the_data_group_and_the_codec(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    """Once a step and layer, whatever the number of micro-batches."""
    chosen = layout([[2, 6]], replicas=2, order=[3, 0, 2, 1], codec="int8", **OVERLAPPED)
    chosen.save(tmp_path / "layout.json")
    found = values(job("abab"), traffic, tmp_path / "layout.json")
    for rank, (calls, count, data) in enumerate(found):
        stage, _, _ = chosen.place(rank)
        assert [data] == [sorted(group) for group in chosen.data_groups(stage)]
        assert calls == {("reduce", tuple(data), "int8"), ("all", tuple(data), None)}
        assert count == 2 * staged.STEPS * (2, 4)[stage]


def refusals(rank: int, size: int, paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        job = plan.load(path)
        chunks = plan.split(staged.model(4), job)
        optimizer = torch.optim.SGD(chunks[0].parameters(), lr=0.1)
        found.append(refusal(lambda: plan.partition(chunks, optimizer, job)))  # noqa: B023
    return found


def unlike_chunks(rank: int, size: int, path: Path) -> list[str]:
    job = plan.load(path)
    chunks = plan.split(staged.model(4), job)
    optimizer = torch.optim.SGD(chunks[0].parameters(), lr=0.1)
    wrong: list[Any] = [chunks[0], chunks * 2, [torch.nn.Linear(1, 1)]]
    given = [chunks if rank == 0 else each for each in wrong]
    return [refusal(lambda: plan.partition(each, optimizer, job)) for each in given]  # noqa: B023


def test_chunks_of_another_source_are_refused(job: Callable[..., Job], tmp_path: Path) -> None:
    layout([[2, 6]]).save(tmp_path / "layout.json")
    expected = [
        rf"rank 1: chunks: expected the list of 1 chunks of plan.split\(\), got {got}; pass the"
        for got in ("Chunk", r"\['Chunk', 'Chunk'\]", r"\['Linear'\]")
    ]
    ranks = job("aa", backend="gloo")
    check_texts(values(ranks, unlike_chunks, tmp_path / "layout.json"), expected)


def test_layouts_that_cannot_be_partitioned_are_refused(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    layouts = [
        layout([[2, 6]], schedule="zero_bubble", weights="cluster", **OVERLAPPED),
        layout([[6]], replicas=2, gradients="cluster"),
        layout([[6]], replicas=2, weights="cluster", shares=(4, 2), **OVERLAPPED),
    ]
    for index, each in enumerate(layouts):
        each.save(tmp_path / f"{index}.json")
    paths = [tmp_path / f"{index}.json" for index in range(len(layouts))]
    expected = [
        'weights: expected "rank" with the schedule zero_bubble, got "cluster"',
        "choose for optimizer_states a level that is as wide or wider",
        'weights: expected "rank" with unequal shares of the batch, got "cluster"',
    ]
    check_texts(values(job("aa", backend="gloo"), refusals, paths), expected)
