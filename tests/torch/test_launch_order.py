"""Operations of several groups that one thread submits: native calls keep the program's order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from vendors import environments

import hetcomm

pytestmark = pytest.mark.needs("emulated vendors")


def _begin(group: dist.ProcessGroup, rank: int) -> tuple[torch.Tensor, dist.Work]:
    tensor = torch.full((1000,), rank + 1, dtype=torch.int32)
    return tensor, dist.all_reduce(tensor, group=group, async_op=True)


def _error(work: dist.Work) -> str:
    try:
        work.wait()
    except hetcomm.Error as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _set_timeout(group: dist.ProcessGroup, seconds: float) -> None:
    """Of operations, and not of the set-up."""
    group._get_backend(torch.device("cpu")).set_timeout(timedelta(seconds=seconds))


def late(rank: int, size: int, everybody_s: float, island_s: float) -> tuple[str, str]:
    """The two ranks of an island use the group of all and then one of their own. Rank 2 makes its
    call in the group of all once that of the island is over."""
    everybody, island = dist.new_group(), dist.new_group([0, 1])
    _set_timeout(everybody, everybody_s)
    store = dist.distributed_c10d._get_default_store()
    if rank == 2:
        store.wait(["over 0", "over 1"], timedelta(seconds=60))
        return _error(_begin(everybody, rank)[1]), ""
    _set_timeout(island, island_s)
    _, first = _begin(everybody, rank)
    tensor, second = _begin(island, rank)
    ends = ["", _error(second)]
    store.set(f"over {rank}", "yes")
    ends[0] = _error(first)
    if ends[1] == "no error":
        assert (tensor == 3).all()
    return ends[0], ends[1]


def test_an_operation_outlives_a_failing_one_that_holds_it_up(job: Callable[..., Job]) -> None:
    made = job("aab", environments=environments("nnc"))
    for first, second in values(made, late, 2.0, 30.0)[:2]:
        assert "no completion within 2 s" in first, first
        assert second == "no error"


def test_a_timeout_names_the_operation_that_holds_up(job: Callable[..., Job]) -> None:
    made = job("aab", environments=environments("nnc"))
    for first, second in values(made, late, 60.0, 1.0)[:2]:
        assert first == "no error"
        assert "no completion within 1 s" in second, second
        assert "behind an operation that this thread submitted before, all_reduce" in second, second
