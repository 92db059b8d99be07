"""Surviving ranks continue in a smaller group."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, values
from torch.distributed import distributed_c10d as c10d

import hetcomm

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "shrink_group"), reason="this torch has no shrink_group()"
)


def shrink_twice(rank: int, size: int) -> list[tuple[int, int, float]]:
    seen = []
    for leaves in (size - 1, 0):
        if dist.get_rank() == leaves:
            return seen
        dist.shrink_group([leaves])
        total = torch.tensor([float(rank + 1)])
        dist.all_reduce(total)
        seen.append((dist.get_rank(), dist.get_world_size(), total.item()))
    return seen


def test_a_group_shrinks_twice(job: Callable[..., Job]) -> None:
    assert values(job("abab"), shrink_twice) == [
        [(0, 3, 6.0)],
        [(1, 3, 6.0), (0, 2, 5.0)],
        [(2, 3, 6.0), (1, 2, 5.0)],
        [],
    ]


def shrink_again(rank: int, size: int) -> list[float]:
    """The same ranks leave out the same ones again, listed in any order, in groups of their own."""
    backend = c10d._get_default_group()._get_backend(torch.device("cpu"))
    totals = []
    if rank < 2:
        for excluded in ([2, 3], [2, 3], [3, 2]):
            group = backend.shrink(excluded, 0, None)
            total = torch.tensor([float(rank + 1)])
            group.allreduce([total]).wait()
            totals.append(total.item())
    dist.barrier()
    return totals


def test_a_group_shrinks_again_without_the_same_ranks(job: Callable[..., Job]) -> None:
    made = job("abab", group_timeout=20.0)
    assert values(made, shrink_again) == [[3.0] * 3, [3.0] * 3, [], []]


def after_a_death(rank: int, size: int) -> float:
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="rank 2"):
        for _ in range(1000):
            dist.all_reduce(torch.ones(1000))
    dist.shrink_group([2], shrink_flags=c10d.SHRINK_ABORT)
    total = torch.ones(1000)
    dist.all_reduce(total)
    return total[0].item()


def test_a_group_shrinks_after_a_death(job: Callable[..., Job]) -> None:
    outcomes = launch(job("aabb", may_die=(2,)), after_a_death)
    assert [outcome.value for outcome in outcomes] == [3.0, 3.0, None, 3.0], outcomes


def after_two_deaths(rank: int, size: int) -> tuple[list[int], float]:
    if rank in (1, 4):
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hetcomm.PeerFailedError) as raised:
        for _ in range(100_000):
            dist.all_reduce(torch.ones(1000))
    failed = list(raised.value.failed_ranks)
    dist.shrink_group(failed, shrink_flags=c10d.SHRINK_ABORT)
    total = torch.ones(1000)
    dist.all_reduce(total)
    return failed, total[0].item()


@pytest.mark.parametrize("hosts", ["aaaaa", "aabbb"])
def test_a_group_shrinks_to_the_ranks_that_no_error_names(
    job: Callable[..., Job], hosts: str
) -> None:
    outcomes = launch(job(hosts, may_die=(1, 4)), after_two_deaths)
    found = [outcome.value for outcome in outcomes if outcome.rank not in (1, 4)]
    assert found == [([1, 4], 3.0)] * 3, outcomes


def with_a_later_death(rank: int, size: int) -> tuple[list[int], list[int], float]:
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hetcomm.PeerFailedError) as first:
        for _ in range(100_000):
            dist.all_reduce(torch.ones(1000))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(
        hetcomm.PeerFailedError, match="leave out all ranks of failed_ranks"
    ) as more:
        dist.shrink_group(list(first.value.failed_ranks), shrink_flags=c10d.SHRINK_ABORT)
    dist.shrink_group(list(more.value.failed_ranks), shrink_flags=c10d.SHRINK_ABORT)
    total = torch.ones(1000)
    dist.all_reduce(total)
    return list(first.value.failed_ranks), list(more.value.failed_ranks), total[0].item()


def test_shrinking_reports_a_rank_that_has_died_since(job: Callable[..., Job]) -> None:
    outcomes = launch(job("aabb", may_die=(1, 2), bound=60.0), with_a_later_death)
    found = [outcome.value for outcome in outcomes if outcome.rank not in (1, 2)]
    assert found == [([2], [1, 2], 2.0)] * 2, outcomes


def left_behind(rank: int, size: int) -> str:
    if rank == 0:
        return ""
    with pytest.raises(RuntimeError) as raised:
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).shrink([1])
    return str(raised.value)


def test_an_excluded_rank_may_not_shrink(job: Callable[..., Job]) -> None:
    assert "left out" in values(job("aa", group_timeout=20.0), left_behind)[1]
