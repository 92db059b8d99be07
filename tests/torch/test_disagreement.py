"""Ranks that make different calls get an error on every rank, soon, that names them.

Each disagreement has a group of its own with all ranks. So one job shows many disagreements, and
shows that other groups continue.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, values

BOUND = 15.0  # seconds from the call to the error, where the group's timeout is 60 s
SENTINEL = -77

Group = dist.ProcessGroup


def _full(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), SENTINEL, dtype=dtype)


def _reduced(
    count: int, dtype: torch.dtype = torch.float32, op: Any = dist.ReduceOp.SUM
) -> Callable[[Group], None]:
    return lambda group: dist.all_reduce(_full(count, dtype), op, group=group)


def _premul(factor: float) -> Any:
    return dist._make_nccl_premul_sum(factor)


def _rooted(name: str, root: int) -> Callable[[Group], None]:
    def call(group: Group) -> None:
        size, rank = group.size(), group.rank()
        parts = [_full(500) for _ in range(size)] if rank == root else None
        if name == "gather":
            dist.gather(_full(500), parts, dst=root, group=group)
        elif name == "scatter":
            dist.scatter(_full(500), parts, src=root, group=group)
        else:
            getattr(dist, name)(_full(500), root, group=group)

    return call


def _gathered(group: Group) -> None:
    dist.all_gather_into_tensor(_full(1000 * group.size()), _full(1000), group=group)


def _scattered(group: Group) -> None:
    dist.reduce_scatter_tensor(_full(1000), _full(1000 * group.size()), group=group)


def _exchanged(extra: int) -> Callable[[Group], None]:
    """The first rank sends `extra` more elements to the last than the last expects."""

    def call(group: Group) -> None:
        size, rank = group.size(), group.rank()
        sends = [10] * size
        if rank == 0:
            sends[-1] += extra
        dist.all_to_all_single(_full(10 * size), _full(sum(sends)), [10] * size, sends, group=group)

    return call


def _both_orders(first: bool) -> Callable[[Group], None]:
    calls = [_rooted("broadcast", 0), _reduced(2000)]

    def call(group: Group) -> None:
        for one in calls if first else reversed(calls):
            one(group)

    return call


# The call of the other ranks, and the call of the odd rank.
DISAGREEMENTS: dict[str, tuple[Callable[[Group], None], Callable[[Group], None]]] = {
    "sizes": (_reduced(1000), _reduced(1001)),
    "sizes, one of several chunks": (_reduced(1000), _reduced(1_500_000)),
    "an empty tensor": (_reduced(1000), _reduced(0)),
    "dtypes of one width": (_reduced(1000), _reduced(1000, torch.int32)),
    "dtypes of two widths": (_reduced(1000), _reduced(1000, torch.float64)),
    "operations": (_reduced(1000), _reduced(1000, op=dist.ReduceOp.MAX)),
    "factors": (_reduced(1000, op=_premul(2.0)), _reduced(1000, op=_premul(3.0))),
    "broadcast's roots": (_rooted("broadcast", 0), _rooted("broadcast", 1)),
    "reduce's roots": (_rooted("reduce", 0), _rooted("reduce", 1)),
    "gather's roots": (_rooted("gather", 0), _rooted("gather", 1)),
    "scatter's roots": (_rooted("scatter", 0), _rooted("scatter", 1)),
    "all_reduce and broadcast": (_reduced(500), _rooted("broadcast", 0)),
    "all_gather and reduce_scatter": (_gathered, _scattered),
    "barrier and all_reduce": (lambda group: dist.barrier(group=group), _reduced(1)),
    "all_to_all's splits": (_exchanged(1), _exchanged(1)),
    "order": (_both_orders(True), _both_orders(False)),
}


def disagree(rank: int, size: int) -> dict[str, tuple]:
    groups = {name: dist.new_group(list(range(size))) for name in DISAGREEMENTS}
    reports = {}
    for number, (name, (usual, odd)) in enumerate(DISAGREEMENTS.items()):
        group = groups[name]
        begin = time.monotonic()
        error: Exception | None = None
        try:
            (odd if rank == number % size else usual)(group)
            dist.barrier(group=group)  # a rank that does not wait gets the error here
        except Exception as caught:
            error = caught
        kinds = [kind.__name__ for kind in type(error).__mro__]
        reports[name] = (kinds, str(error), time.monotonic() - begin)
        dist.all_reduce(torch.ones(1))  # the default group continues
    return reports


@pytest.mark.parametrize("layout", ["aa", "ab", "aaa", "abbb", "babab"])
def test_every_rank_hears_which_rank_made_which_call(job: Callable[..., Job], layout: str) -> None:
    results = values(job(layout, bound=280), disagree)
    failures = []
    for name in DISAGREEMENTS:
        for rank, result in enumerate(results):
            kinds, text, seconds = result[name]
            where = f"{name}, rank {rank} after {seconds:.1f} s: {kinds[0]}: {text}"
            if "Error" not in kinds:
                failures.append(f"no error from hetcomm: {where}")
            elif seconds > BOUND:
                failures.append(f"too late: {where}")
            elif not re.search(r"rank \d", text):
                failures.append(f"names no rank: {where}")
            elif "timeout" in text.lower() or "no completion within" in text:
                failures.append(f"blames the timeout: {where}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("layout", ["aa", "ab"])
@pytest.mark.parametrize(
    "expected", [(99, torch.float32), (101, torch.float32), (100, torch.int32)]
)
def test_a_message_of_another_size_or_dtype_is_an_error(
    job: Callable[..., Job], layout: str, expected: tuple[int, torch.dtype]
) -> None:
    outcomes = launch(job(layout, group_timeout=8), _send_and_receive, *expected)
    assert outcomes[1].error, "the receiver took a message that it had not asked for"
    assert "Error" in outcomes[1].error
    assert re.search(r"rank 0", outcomes[1].text), outcomes[1].text


def _send_and_receive(rank: int, size: int, count: int, dtype: torch.dtype) -> None:
    if rank == 0:
        dist.send(torch.ones(100), 1)
    else:
        dist.recv(torch.zeros(count, dtype=dtype), 0)


def _leave_early(rank: int, size: int) -> None:
    dist.barrier()
    if rank != 1:
        dist.all_reduce(torch.ones(1000))


@pytest.mark.parametrize("layout", ["aa", "aba"])
def test_a_rank_leaving_before_the_last_call_is_named(job: Callable[..., Job], layout: str) -> None:
    work: Job = job(layout, group_timeout=200.0)
    begin = time.monotonic()
    outcomes = launch(work, _leave_early)
    assert time.monotonic() - begin < work.group_timeout / 2
    for outcome in outcomes[:1] + outcomes[2:]:
        assert "Error" in outcome.error, outcome.describe()
        assert "rank 1" in outcome.text
