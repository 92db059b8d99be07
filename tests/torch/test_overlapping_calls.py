"""Calls whose tensors overlap, one by one: refused, or legal in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, refusal, values
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from hetcomm import functional

CPU = torch.device("cpu")
COUNT = 40_000  # elements of a block that travels encoded


def mine(rank: int, count: int) -> Tensor:
    return torch.arange(float(count)) + 100 * rank


def coalesced(call: Callable[..., Any], *calls: Sequence[Tensor]) -> None:
    with _coalescing_manager(dist.group.WORLD, CPU):
        for tensors in calls:
            call(*tensors)


def overlapping_calls(size: int, x: Tensor) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Calls on `x`, which has 8 * size elements, and a word of each refusal."""
    backend = dist.group.WORLD._get_backend(CPU)
    four = [x[4 * each : 4 * each + 4] for each in range(size)]
    over = [x[3 * each : 3 * each + 4] for each in range(size)]
    rows = [torch.zeros(4 * size) for _ in range(2)]
    both = torch.zeros(6 * size)
    parts = [torch.ones(4) for _ in range(2)]

    one, many = "overlaps it", "share no memory"
    calls: dict[str, tuple[str, Callable[[], Any]]] = {
        "part of an input": (one, lambda: dist.reduce_scatter_tensor(x[1:5], x[: 4 * size])),
        "part of an output": (one, lambda: dist.all_gather_into_tensor(x[: 4 * size], x[1:5])),
        "all_to_all on itself": (one, lambda: dist.all_to_all_single(x, x)),
        "another dtype's bits": (
            one, lambda: dist.all_gather_into_tensor(x[: 4 * size].view(torch.int32),
                                                     x[1:5].view(torch.int32)),
        ),
        "bytes": (one, lambda: dist.all_gather_into_tensor(x.view(torch.uint8)[: 3 * size],
                                                           x.view(torch.uint8)[2:5])),
        "a list in one piece": (one, lambda: dist.all_gather(four, x[1:5])),
        "inputs in one piece": (one, lambda: dist.reduce_scatter(x[1:5], four)),
        "gathered into one": (many, lambda: dist.all_gather([x[:4]] * size, parts[0])),
        "gathered side by side": (many, lambda: dist.all_gather(over, parts[0])),
        "to all": (many, lambda: dist.all_to_all(over, [torch.ones(4) for _ in range(size)])),
        "strided": (
            many, lambda: dist.all_gather([x[each :: 2][:4] for each in (0, 2, 4)[:size]], parts[0])
        ),
        "several": (many, lambda: backend.allreduce([x[:4], x[3:7]])),
        "the same twice": (many, lambda: backend.allreduce([x, x])),
        "several of a broadcast": (many, lambda: backend.broadcast([x[:4], x[3:7]])),
        "lists of several": (
            many, lambda: backend.allgather([list(rows[0].chunk(2 * size))] * 2,
                                            [torch.ones(2)] * 2),
        ),
        "coalesced": (many, lambda: coalesced(dist.all_reduce, [x[:4]], [x[2:6]])),
        "coalesced of two dtypes": (
            many, lambda: backend.allreduce_coalesced([x[:4], x.view(torch.int32)[3:7]])
        ),
        "coalesced wholes": (
            many, lambda: coalesced(dist.all_gather_into_tensor,
                                    [both[: 4 * size], parts[0]], [both[2 * size :], parts[1]]),
        ),
        "coalesced parts": (
            many, lambda: coalesced(dist.reduce_scatter_tensor, [x[:4], rows[0]], [x[3:7], rows[1]])
        ),
        "coalesced lists": (
            many, lambda: backend.allgather_coalesced([[x[:4], x[4:8]]] * size, parts)
        ),
    }  # fmt: skip
    if size == 1:
        for name in ("all_to_all on itself", "gathered into one", "gathered side by side", "to all",
                     "strided", "coalesced lists"):  # fmt: skip
            del calls[name]
    return calls


def refused_calls(rank: int, size: int) -> list[str]:
    problems = []
    for name in overlapping_calls(size, torch.zeros(8 * size)):
        x = mine(rank, 8 * size)
        word, call = overlapping_calls(size, x)[name]
        text = refusal(call)
        if word not in text or "expected " not in text:
            problems.append(f"{name}: {text}")
        if not torch.equal(x, mine(rank, 8 * size)):
            problems.append(f"{name}: memory changed")
        total = torch.ones(3)
        dist.all_reduce(total)  # the group continues
        if total[0] != size:
            problems.append(f"{name}: the next sum is {total}")
    return problems


@pytest.mark.parametrize("layout", ["a", "aa", "aba"])
def test_calls_whose_tensors_overlap_are_refused(job: Callable[..., Job], layout: str) -> None:
    assert values(job(layout), refused_calls) == [[]] * len(layout)


def legal_calls(rank: int, size: int) -> list[str]:
    """What NCCL and gloo permit, and tensors that only seem to overlap."""
    backend = dist.group.WORLD._get_backend(CPU)
    every = [mine(each, 4 * size) for each in range(size)]
    own = slice(4 * rank, 4 * rank + 4)
    total = sum(every)
    problems = []

    def check(name: str, got: Tensor, want: Tensor) -> None:
        if not torch.equal(got, want):
            problems.append(f"rank {rank}, {name}: got {got}, expected {want}")

    blocks = torch.cat([one[4 * each : 4 * each + 4] for each, one in enumerate(every)])
    for root in range(size):
        x = every[rank].clone()
        dist.gather(x[own], list(x.chunk(size)) if rank == root else None, dst=root)
        check("gather", x, blocks if rank == root else every[rank])
        x = every[rank].clone()
        dist.scatter(x[own], list(x.chunk(size)) if rank == root else None, src=root)
        want = every[rank].clone()
        want[own] = every[root][own]
        check("scatter", x, want)
        x = every[rank].clone()
        dist.reduce(x, root)
        if rank == root:
            check("reduce", x, total)
    x = every[rank].clone()
    dist.all_to_all(list(x.chunk(size)), list(x.chunk(size)))
    check("all_to_all", x, torch.cat([one[own] for one in every]))
    if size == 1:
        dist.all_to_all_single(x, x)
        check("all_to_all_single", x, every[0])
    x = torch.cat([every[rank], every[rank] + 1])
    coalesced(dist.all_gather_into_tensor, [x[: 4 * size], x[2:6]], [x[4 * size :], x[3:7]])
    doubled = [torch.cat([one, one + 1]) for one in every]
    want = torch.cat([one[part] for part in (slice(2, 6), slice(3, 7)) for one in doubled])
    check("coalesced gathers", x, want)
    x = doubled[rank].clone()
    want = doubled[rank].clone()
    halves = [x[: 2 * size], x[2 * size : 4 * size]]
    want[1:4:2], want[0:4:2] = (total[2 * size * half :][2 * rank :][:2] for half in (0, 1))
    coalesced(dist.reduce_scatter_tensor, [x[1:4:2], halves[0]], [x[0:4:2], halves[1]])
    check("coalesced scatters", x, want)
    table = torch.zeros(5, 2, size)
    dist.all_gather(list(table.unbind(2)), mine(rank, 10).view(5, 2))
    check("slices", table, torch.stack([mine(each, 10).view(5, 2) for each in range(size)], 2))
    table = torch.zeros(6, 2 * size)
    quarters = [
        table[each::2, 2 * other : 2 * other + 2] for each in (0, 1) for other in range(size)
    ]
    work = backend.allgather([quarters[:size]], [mine(rank, 6).view(3, 2)])
    work.wait()
    backend.allreduce_coalesced(quarters).wait()
    for each in range(size):
        check("rows and columns", quarters[each], size * mine(each, 6).view(3, 2))
        check("rows between", quarters[size + each], torch.zeros(3, 2))
    return problems


@pytest.mark.parametrize("layout", ["a", "aa", "ab", "aab", "abc"])
def test_what_others_permit_in_place_stays_legal(job: Callable[..., Job], layout: str) -> None:
    assert values(job(layout), legal_calls) == [[]] * len(layout)


def rooted(rank: int, size: int, name: str) -> None:
    """Only the root's tensors overlap."""
    x = mine(rank, 4 * size)
    list_of = list(x.chunk(size)) if rank == 0 else None
    part = x[1:5].clone() if rank else x[1:5]
    if name == "gather":
        dist.gather(part, list_of, dst=0)
    else:
        dist.scatter(part, list_of, src=0)
    dist.barrier()


@pytest.mark.parametrize("name", ["gather", "scatter"])
@pytest.mark.parametrize("layout", ["aa", "ab"])
def test_other_ranks_hear_of_the_roots_overlap(
    job: Callable[..., Job], layout: str, name: str
) -> None:
    first, *others = launch(job(layout, group_timeout=20), rooted, name)
    assert "InvalidArgumentError" in first.error and "overlaps it" in first.text, first.describe()
    for other in others:
        assert "Error" in other.error and "overlaps it" in other.text, other.describe()


def encoded(rank: int, size: int) -> list[str]:
    """The bits of an own block in place are those of separate memory, and own blocks only."""
    problems = []
    own = slice(COUNT * rank, COUNT * (rank + 1))
    for codec in ("int8", "bf16", "lossless"):
        given = torch.randn(COUNT * size, generator=torch.Generator().manual_seed(rank))
        x, apart = given.clone(), torch.zeros(COUNT * size)
        functional.all_gather(x, x[own], codec=codec)
        functional.all_gather(apart, given[own].clone(), codec=codec)
        if not torch.equal(x, apart):
            problems.append(f"all_gather {codec}")
        x, part = given.clone(), torch.zeros(COUNT)
        functional.reduce_scatter(x[own], x, codec=codec)
        functional.reduce_scatter(part, given.clone(), codec=codec)
        rest = torch.arange(size) != rank
        blocks, before = x.view(size, COUNT), given.view(size, COUNT)
        if not torch.equal(x[own], part) or not torch.equal(blocks[rest], before[rest]):
            problems.append(f"reduce_scatter {codec}")
        text = refusal(partial(functional.reduce_scatter, x[1 : COUNT + 1], x, codec=codec))
        if "overlaps it" not in text:
            problems.append(f"shifted {codec}: {text}")
    return problems


@pytest.mark.parametrize("layout", ["ab", "aab", "abcb"])
def test_encoded_own_blocks_have_the_bits_of_separate_memory(
    job: Callable[..., Job], layout: str
) -> None:
    assert values(job(layout), encoded) == [[]] * len(layout)
