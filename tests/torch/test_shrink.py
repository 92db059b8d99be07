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


def left_behind(rank: int, size: int) -> str:
    if rank == 0:
        return ""
    with pytest.raises(RuntimeError) as raised:
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).shrink([1])
    return str(raised.value)


def test_an_excluded_rank_may_not_shrink(job: Callable[..., Job]) -> None:
    assert "left out" in values(job("aa", group_timeout=20.0), left_behind)[1]
