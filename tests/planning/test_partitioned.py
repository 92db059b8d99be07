"""A partitioned pipeline has the losses of the unsplit model, with its gradients clipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import staged
import torch
from ranks import Job, check_texts, refusal, values
from staged import layout

from hetcomm import plan
from hetcomm.plan import Layout, Replica, Stage

OVERLAPPED = {
    "gradients": "cluster",
    "optimizer_states": "cluster",
    "overlap_optimizer": True,
}
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
    "states divided": layout([[2, 6]], replicas=2, optimizer_states="cluster"),
    "weights divided": layout(
        [[2, 6]], replicas=2, order=[3, 0, 2, 1], weights="cluster", **OVERLAPPED
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_the_unsplit_model(job: Callable[..., Job], tmp_path: Path, case: str) -> None:
    chosen, path = CASES[case], tmp_path / "layout.json"
    chosen.save(path)
    results = values(job("a" * len(chosen.ranks), backend="gloo"), staged.train, path, 4, True)
    last = [losses for losses in results if losses]
    assert len(last) == chosen.replicas
    for losses in last:
        assert losses == pytest.approx(staged.reference(4, clip=True), rel=1e-6)


def refusals(rank: int, size: int, paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        job = plan.load(path)
        chunks = plan.split(staged.model(4), job)
        optimizer = torch.optim.SGD(chunks[0].parameters(), lr=0.1)
        found.append(refusal(lambda: plan.partition(chunks, optimizer, job)))  # noqa: B023
    return found


def test_layouts_that_cannot_be_partitioned_are_refused(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    layouts = [
        Layout((Stage(((0, 6),), (Replica((0, 1)),)),), batch=2, micro_batch=1),
        layout([[2, 6]], schedule="zero_bubble", weights="cluster", **OVERLAPPED),
        layout([[6]], replicas=2, gradients="cluster"),
    ]
    for index, each in enumerate(layouts):
        each.save(tmp_path / f"{index}.json")
    paths = [tmp_path / f"{index}.json" for index in range(3)]
    expected = [
        "expected tensor degree 1 in all replicas, got 2",
        'weights: expected "rank" with the schedule zero_bubble, got "cluster"',
        "choose for optimizer_states a level that is as wide or wider",
    ]
    check_texts(values(job("aa", backend="gloo"), refusals, paths), expected)
