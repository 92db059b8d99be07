"""Groups made of a group: split_group(), new_group() and meshes of ranks bound to a device.

torch splits groups of accelerators only, so the ranks have emulated devices.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import emulated_device
import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_group
from vendors import environments

import hetcomm

pytestmark = [
    *emulated_device.needed,
    pytest.mark.skipif(
        not hasattr(dist.ProcessGroup, "split_group"),
        reason="this torch splits groups of NCCL only",
    ),
]

HOME = emulated_device.NAME
# Letters of hosts and vendors: one native island; one for each vendor; each half has both.
LAYOUTS = [("aaaa", "nnnn"), ("aabb", "nana"), ("aabb", "nnaa")]


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    emulated_device.build()


def bound() -> torch.device:
    emulated_device.load()
    return torch.device(HOME, int(os.environ["HETCOMM_DEVICE"]))


def _job(job: Callable[..., Job], hosts: str, vendors: str, **settings: Any) -> Job:
    settings = {"backend": f"cpu:hetcomm,{HOME}:hetcomm"} | settings
    return job(hosts, environments=environments(vendors), prepare=bound, **settings)


def full(value: float, where: str = HOME) -> Tensor:
    return torch.full((1000,), float(value), device="cpu").to(where)


def is_all(tensor: Tensor, value: float) -> None:
    assert bool((tensor.cpu() == value).all()), f"{tensor} instead of {value}"


def halves(rank: int, size: int) -> tuple[int, int, str]:
    """Two groups of two, in odd order, work at the same time as each other and their parent."""
    child = dist.split_group(split_ranks=[[2, 0], [3, 1]])
    assert child is not None
    mine = [0, 2] if rank in (0, 2) else [1, 3]
    for turn in range(5):
        for where in (HOME, "cpu"):
            small, large = full(rank + turn, where), full(10 * rank + turn, where)
            works = [
                dist.all_reduce(small, group=child, async_op=True),
                dist.all_reduce(large, async_op=True),
            ]
            for work in works if turn % 2 else works[::-1]:
                work.wait()
            is_all(small, sum(mine) + 2 * turn)
            is_all(large, 60 + 4 * turn)
            root = full(rank, where)
            dist.broadcast(root, mine[1], group=child)
            is_all(root, mine[1])
    parts = [torch.empty(1000, device=HOME) for _ in mine]
    dist.all_gather(parts, full(rank), group=child)
    assert [int(part[0].item()) for part in parts] == mine
    found = dist.get_rank(child), dist.get_world_size(child), child.group_desc
    dist.destroy_process_group(child)
    last = full(1)
    dist.all_reduce(last)
    is_all(last, size)
    return found


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_halves_work_beside_their_parent(job: Callable[..., Job], hosts: str, vendors: str) -> None:
    found = values(_job(job, hosts, vendors), halves)
    assert [(rank, size) for rank, size, _ in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert {text for _, _, text in found} == {"default_pg:split:0"}


def some(rank: int, size: int) -> list[str | None]:
    """Some ranks are in no group; others are in two, one after the other or one within another."""
    seen: list[str | None] = []
    for ranks in ([[1, 3]], [[0], [3, 2, 1]]):
        child = dist.split_group(split_ranks=ranks)
        if child is None:
            seen.append(None)
        else:
            total = full(2**rank)
            dist.all_reduce(total, group=child)
            seen.append(f"{dist.get_rank(child)} {int(total[0].item())}")
            grandchild = dist.split_group(child, split_ranks=[[0]])
            assert (grandchild is None) == (dist.get_rank(child) > 0)
        total = full(2**rank)
        dist.all_reduce(total)
        is_all(total, 15)
    return seen


def test_excluded_ranks_continue(job: Callable[..., Job]) -> None:
    assert values(_job(job, "aabb", "nnaa"), some) == [
        [None, "0 1"], ["0 10", "0 14"], [None, "1 14"], ["1 10", "2 14"],
    ]  # fmt: skip


def order_and_errors(rank: int, size: int) -> tuple[int | None, list[str]]:
    parent = _get_default_group()
    child = parent.split_group([3, 1], timedelta(seconds=30), group_name="two")
    texts = []
    for ranks in ([0, size], [-1, 0], [1, 1]):
        with pytest.raises(RuntimeError if ranks == [1, 1] else ValueError) as raised:
            parent.split_group(ranks, timedelta(seconds=30), group_name=f"bad {ranks}")
        texts.append(str(raised.value))
    total = full(rank)
    dist.all_reduce(total)
    is_all(total, 6)
    return None if child is None else child.rank(), texts


def test_invalid_rank_lists_are_rejected(job: Callable[..., Job]) -> None:
    results = values(_job(job, "aaaa", "nnnn"), order_and_errors)
    children = [child for child, _ in results]
    assert children in ([None, 1, None, 0], [None, 0, None, 1])  # some torch versions sort
    for _, texts in results:
        assert "from 0 to 3, got [0, 4]" in texts[0]
        assert "from 0 to 3, got [-1, 0]" in texts[1]
        assert "duplicate" in texts[2]


def in_time(rank: int, size: int) -> tuple[float, str, str]:
    """Rank 1 comes to no collective of the child, and not to the second split."""
    parent, store = _get_default_group(), dist.distributed_c10d._get_default_store()
    child = dist.split_group(split_ranks=[[0, 1]], timeout=timedelta(seconds=10))
    assert child is not None
    assert child._get_backend(torch.device(HOME)).options._timeout == timedelta(seconds=10)
    assert parent._get_backend(torch.device(HOME)).options._timeout == timedelta(seconds=100)
    begin, late, absent = time.monotonic(), "", ""
    if rank == 0:
        with pytest.raises(TimeoutError) as raised:
            total = torch.ones(5)
            dist.all_reduce(total, group=child)
        late = str(raised.value)
        with pytest.raises(TimeoutError) as raised:
            parent.split_group([0, 1], timedelta(seconds=10), group_name="alone")
        absent = str(raised.value)
    took = time.monotonic() - begin
    store.set(f"{rank} is done", "")
    store.wait([f"{other} is done" for other in range(size)], timedelta(seconds=90))
    last = full(1)
    dist.all_reduce(last)  # the parent continues
    is_all(last, size)
    return took, late, absent


def test_a_split_has_its_own_timeout(job: Callable[..., Job]) -> None:
    took, late, absent = values(_job(job, "aa", "nn", group_timeout=100.0), in_time)[0]
    assert took < 60
    assert "all_reduce" in late and "10 s" in late, late
    assert "rank 1" in absent or "ranks 1" in absent, absent


def new_groups(rank: int, size: int) -> list[float]:
    """With a bound device torch asks the parent for a group on excluded ranks."""
    seen = []
    for ranks in ([0, 1], [2, 3], [1, 2]):
        group = dist.new_group(ranks)
        if rank in ranks:
            total = full(rank + 1)
            dist.all_reduce(total, group=group)
            seen.append(total[0].item())
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
    last = full(1)
    dist.all_reduce(last)
    is_all(last, size)
    return seen


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_new_groups_of_bound_ranks_work(job: Callable[..., Job], hosts: str, vendors: str) -> None:
    assert values(_job(job, hosts, vendors), new_groups) == [[3.0], [3.0, 5.0], [7.0, 5.0], [7.0]]


def mesh(rank: int, size: int) -> tuple[float, float]:
    made = dist.init_device_mesh(HOME, (2, 2), mesh_dim_names=("outer", "inner"))
    sums = []
    for name in ("outer", "inner"):
        total = full(2**rank)
        dist.all_reduce(total, group=made.get_group(name))
        sums.append(total[0].item())
    return sums[0], sums[1]


def test_a_mesh_of_bound_ranks_works(job: Callable[..., Job]) -> None:
    assert values(_job(job, "aabb", "nnaa"), mesh) == [(5, 3), (10, 3), (5, 12), (10, 12)]


def merged(rank: int, size: int) -> list[float]:
    half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    assert half is not None
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    whole = half.merge_remote_group(store, size, timedelta(seconds=60), "whole")
    seen = []
    for where in (HOME, "cpu"):
        total = full(2**rank, where)
        whole.allreduce([total]).wait()
        seen.append(total[0].item())
    return seen


@pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "merge_remote_group"), reason="this torch merges no groups"
)
def test_halves_merge_again(job: Callable[..., Job]) -> None:
    assert values(_job(job, "aabb", "nnaa"), merged) == [[15.0, 15.0]] * 4


def from_anybody(rank: int, size: int) -> str:
    with pytest.raises(hetcomm.InvalidArgumentError) as raised:
        dist.recv(full(0))
    last = full(1)
    dist.all_reduce(last)
    is_all(last, size)
    return str(raised.value)


def test_a_receive_into_device_memory_names_its_sender(job: Callable[..., Job]) -> None:
    for rank, text in enumerate(values(_job(job, "aa", "nn"), from_anybody)):
        assert "recv from any rank: expected a rank whose buffers are host memory" in text
        assert f"emulated nvidia GPU {rank}" in text and "name the sender" in text
