"""A model that tensor ranks divide has the losses of the unsplit one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import divisible
import gpt
import pytest
import staged
import torch
from ranks import Job, check_texts, refusal, values
from staged import OVERLAPPED, layout
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel

from hetcomm import plan
from hetcomm.partitioning import local

CASES = {
    "one stage": layout([[6]], tensor=[2]),
    "two replicas": layout([[6]], replicas=2, tensor=[2]),
    "1f1b": layout([[2, 6]], tensor=[2, 2]),
    "gpipe": layout([[4, 6]], tensor=[2, 2], schedule="gpipe"),
    "interleaved": layout([[1, 2], [4, 6]], tensor=[2, 2], schedule="interleaved"),
    "zero bubble": layout([[2, 6]], tensor=[2, 2], schedule="zero_bubble"),
    "recomputed": layout([[6]], tensor=[2], recompute=True),
    "a small stage first": layout([[3, 6]], tensor=[1, 2]),
    "a large stage first": layout([[3, 6]], tensor=[2, 1]),
}
PARTITIONED = {
    **{name: CASES[name] for name in ("one stage", "1f1b", "a large stage first")},
    "gpipe, states divided": layout(
        [[6]], replicas=2, tensor=[2], schedule="gpipe", optimizer_states="cluster"
    ),
    "overlapped": layout([[6]], replicas=2, tensor=[2], **OVERLAPPED),
    "weights divided": layout([[6]], replicas=2, tensor=[2], weights="cluster", **OVERLAPPED),
    "unequal shares": layout([[6]], replicas=2, tensor=[2], shares=(2, 4), **OVERLAPPED),
    "overlapped, two stages": layout([[3, 6]], tensor=[2, 2], **OVERLAPPED),
    "overlapped, interleaved": layout(
        [[1, 2], [4, 6]], tensor=[2, 2], schedule="interleaved", **OVERLAPPED
    ),
    "overlapped, zero bubble": layout(
        [[2, 6]], tensor=[2, 2], schedule="zero_bubble", **OVERLAPPED
    ),
    "overlapped, unlike stages": layout([[3, 6]], replicas=2, tensor=[1, 2], **OVERLAPPED),
    "overlapped, recomputed": layout([[6]], replicas=2, tensor=[2], recompute=True, **OVERLAPPED),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_the_unsplit_model(job: Callable[..., Job], tmp_path: Path, case: str) -> None:
    chosen = CASES[case]
    ranks = job("a" * len(chosen.ranks))
    path = tmp_path / "layout.json"
    staged.check(ranks, path, chosen, divisible.model, False, divisible.by_names)


@pytest.mark.parametrize("case", PARTITIONED)
def test_losses_of_a_partition_equal_the_unsplit_model(
    job: Callable[..., Job], tmp_path: Path, case: str
) -> None:
    """With clipped gradients, so that the norm counts each parameter once."""
    chosen = PARTITIONED[case]
    ranks = job("a" * len(chosen.ranks))
    path = tmp_path / "layout.json"
    staged.check(ranks, path, chosen, divisible.model, True, divisible.by_names)


def test_a_function_may_divide_layers(job: Callable[..., Job], tmp_path: Path) -> None:
    path, chosen = tmp_path / "layout.json", PARTITIONED["overlapped"]
    staged.check(job("aabb"), path, chosen, divisible.model, True, divisible.by_a_function)


TIED = {
    "one stage": layout([[6]], replicas=2, tensor=[2], **OVERLAPPED),
    "two stages": layout([[2, 6]], tensor=[2, 2], **OVERLAPPED),
}


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
@pytest.mark.parametrize("case", TIED)
def test_tied_embeddings_are_divided_alike(
    job: Callable[..., Job], tmp_path: Path, case: str, partitioned: bool
) -> None:
    make = partial(divisible.model, tied=True)
    path = tmp_path / "layout.json"
    staged.check(job("aaaa"), path, TIED[case], make, partitioned, divisible.by_names)


def parts(rank: int, size: int, path: Path) -> Any:
    """Of each rank: the elements of its parameters, and the bits of whole ones after some steps
    from unequal starts, with int8 gradients."""
    job = plan.load(path)
    model = divisible.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * rank
    chunks = plan.split(model, job, divisible.by_names())
    parameters = [p for chunk in chunks for p in chunk.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    partition = plan.partition(chunks, optimizer, job)
    example = next(staged.batches())[0][: job.layout.micro_batch]
    schedule = plan.schedule(chunks, job, gpt.loss_of, example, partition)
    staged.steps(job, schedule, optimizer)
    with partition.gathered():
        whole = [local.values(p).numpy().copy() for p in parameters if not local.is_sharded(p)]
        elements = sum(local.values(p).numel() for p in parameters if isinstance(p, DTensor))
    return elements, whole


def test_tensor_ranks_hold_halves_and_equal_bits_of_the_rest(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    chosen = layout([[6]], replicas=2, tensor=[2], codec="int8", **OVERLAPPED)
    chosen.save(tmp_path / "layout.json")
    found = values(job("aabb"), parts, tmp_path / "layout.json")
    total = sum(p.numel() for p in divisible.model().parameters())
    assert found[0][0] < 0.6 * total and found[0][0] == found[2][0]
    for _, whole in found[1:]:
        assert len(whole) == len(found[0][1]) > 0
        assert all((a == b).all() for a, b in zip(whole, found[0][1], strict=True))


def whole_states(rank: int, size: int, path: Path) -> tuple[list[Any], bool]:
    """The names and shapes of the whole state that this rank gets, and whether loading brings its
    values back."""
    job = plan.load(path)
    chunks = plan.split(divisible.model(), job, divisible.by_names())
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.1)
    partition = plan.partition(chunks, optimizer, job)
    full = partition.full_state_dict()
    expected = divisible.model().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in full.items())
    zeros = {name: torch.zeros_like(value) for name, value in expected.items()}
    partition.load_state_dict({"model": zeros})
    with partition.gathered():
        cleared = not any(local.values(p).any() for p in chunks[0].parameters())
        divided = chunks[0].state_dict()
    partition.load_state_dict({"model": expected})
    with partition.gathered():
        restored = all(
            torch.equal(each.full_tensor() if isinstance(each, DTensor) else each, expected[name])
            for name, each in chunks[0].state_dict().items()
        )
    assert sorted(divided) == sorted(expected)
    return sorted(full), cleared and restored


def test_whole_states_have_all_shards(job: Callable[..., Job], tmp_path: Path) -> None:
    chosen = layout([[6]], replicas=2, tensor=[2], weights="cluster", **OVERLAPPED)
    chosen.save(tmp_path / "layout.json")
    found = values(job("aaaa", backend="gloo"), whole_states, tmp_path / "layout.json")
    names = sorted(divisible.model().state_dict())
    assert found == [(names, True), ([], True), ([], True), ([], True)]


def mistakes(rank: int, size: int, paths: list[Path]) -> list[str]:
    def split(path: Path, tensor: Any = None, tied: bool = False) -> str:
        job = plan.load(path)
        return refusal(lambda: plan.split(divisible.model(tied), job, tensor))

    even, descending, unlike = paths
    job = plan.load(unlike)
    chunks = plan.split(divisible.model(), job, {})
    optimizer = torch.optim.SGD(chunks[0].parameters(), lr=0.1)
    return [
        split(even),
        split(even, {"*.wider": ColwiseParallel()}),
        split(even, {"5": ColwiseParallel()}, tied=True),
        split(descending, {"*.wide": ColwiseParallel()}),
        refusal(lambda: plan.partition(chunks, optimizer, job)),
    ]


def test_mistakes_are_refused(job: Callable[..., Job], tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.json" for index in range(3)]
    layout([[6]], tensor=[3]).save(paths[0])
    layout([[6]], tensor=[3], order=[1, 0, 2]).save(paths[1])
    replicas = (plan.Replica((0, 1)), plan.Replica((2,)))
    plan.Layout((plan.Stage(((0, 6),), replicas),), batch=2, micro_batch=1).save(paths[2])
    expected = [
        "tensor: expected how to divide layers, because the layout has tensor degrees up to 3",
        r"patterns of the model's modules, such as \[.*\], got '\*.wider'",
        r"one way to divide a parameter that 2 modules share \(Embedding, Linear\)",
        r"expected ascending ranks in each tensor group, got \(1, 0, 2\)",
        "expected one tensor degree in all replicas of stage 0, got several",
    ]
    check_texts(values(job("aaa", backend="gloo"), mistakes, paths), expected)


def unlike_ties(rank: int, size: int, path: Path) -> list[str]:
    job = plan.load(path)
    chunks = plan.split(divisible.model(tied=True), job, {"5": ColwiseParallel()})
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.1)
    tokens, _ = next(staged.batches())
    return [
        refusal(lambda: plan.schedule(chunks, job, gpt.loss_of, tokens[:2])),
        refusal(lambda: plan.partition(chunks, optimizer, job)),
    ]


def test_stages_that_divide_a_tied_parameter_unlike_are_refused(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    layout([[2, 6]], tensor=[2, 2]).save(tmp_path / "layout.json")
    expected = ["expected one way to divide this tied parameter", "in one way, got .*whole among 2"]
    check_texts(
        values(job("aaaa", backend="gloo"), unlike_ties, tmp_path / "layout.json"), expected
    )
