"""Tensors in shared allocations: memory for torch, DDP and FSDP2, and its lifetime."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import nn
from torch._C._distributed_c10d import Backend
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import hetcomm

CPU = torch.device("cpu")
COUNT = 200_003

pytestmark = pytest.mark.skipif(
    not hasattr(Backend, "allocate_tensor"),
    reason="this torch does not ask backends for memory",
)


def backend_of(group: Any = None) -> Any:
    return (group or dist.group.WORLD)._get_backend(CPU)


def allocated(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return backend_of().allocate_tensor(count, dtype=dtype, device=CPU)


def collectives(rank: int, size: int) -> int:
    gloo = dist.new_group(backend="gloo")
    assert backend_of().supports_tensor_alloc(CPU)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float64):
        for turn in range(4):
            generator = torch.Generator().manual_seed(10 * turn + rank)
            given = torch.randint(-50, 50, (COUNT,), generator=generator).to(dtype)
            ours = allocated(COUNT, dtype).copy_(given)
            assert ours.shape == (COUNT,) and ours.dtype == dtype and ours.device == CPU
            dist.all_reduce(given, group=gloo)
            dist.all_reduce(ours)
            assert torch.equal(ours, given)
            everyone = allocated(size * COUNT, dtype)
            dist.all_gather_into_tensor(everyone, ours + rank)  # one part is ordinary: slots
            dist.all_gather_into_tensor(everyone, ours)
            assert torch.equal(everyone, given.repeat(size))
    return backend_of().direct_calls


@pytest.mark.parametrize("layout", ["aa", "aaa", "aabb"])
def test_collectives_use_shared_tensors_in_place(job: Callable[..., Job], layout: str) -> None:
    assert all(calls >= 8 for calls in values(job(layout), collectives))


def life(rank: int, size: int) -> None:
    group = dist.new_group()
    kept = backend_of(group).allocate_tensor(COUNT, dtype=torch.float32, device=CPU).fill_(3)
    dist.destroy_process_group(group)
    assert (kept == 3).all()
    address = kept.data_ptr()
    part = kept[5:9]
    del kept
    assert allocated(COUNT).data_ptr() != address, "memory in use was given out again"
    assert (part == 3).all()
    del part
    again = allocated(COUNT)
    assert again.data_ptr() == address, "memory was not used again"

    before = backend_of().direct_calls
    again.untyped_storage().resize_(0)
    again.untyped_storage().resize_(8 * COUNT)  # as FSDP does
    again.resize_(2 * COUNT).fill_(rank + 1)
    for _ in range(12):  # each lane learns by itself that memory is shared
        dist.all_reduce(again.fill_(rank + 1))
        assert (again == 3).all()
    assert backend_of().direct_calls > before

    work = dist.all_reduce(allocated(COUNT).fill_(2), async_op=True)
    others = [allocated(COUNT).fill_(7) for _ in range(3)]
    work.wait()
    assert (work.result()[0] == 4).all()
    assert all((other == 7).all() for other in others)
    assert allocated(0).shape == (0,)
    with pytest.raises(RuntimeError):
        allocated(-1)
    large = allocated(80 << 20)  # more than hetcomm keeps
    del large
    assert allocated(3, torch.int8).numel() == 3


def test_memory_lives_as_long_as_its_tensors_and_is_reused(job: Callable[..., Job]) -> None:
    values(job("aa"), life)


def forked(rank: int, size: int) -> None:
    mine = allocated(COUNT).fill_(1)
    free = allocated(COUNT).fill_(2)
    address = free.data_ptr()
    del free
    child = os.fork()
    if child == 0:
        status = 1
        try:
            del mine
            assert allocated(COUNT).fill_(5).data_ptr() != address
            assert allocated(COUNT).fill_(5).data_ptr() != address
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    free = allocated(COUNT)
    assert free.data_ptr() == address and (free == 2).all()
    assert (mine == 1).all()


def test_a_forked_child_keeps_its_parents_memory_intact(job: Callable[..., Job]) -> None:
    values(job("aa"), forked)


def apart(rank: int, size: int) -> None:
    assert not backend_of().supports_tensor_alloc(CPU)
    with pytest.raises(hetcomm.InvalidArgumentError, match="allocate_tensor: expected the CPU, on"):
        allocated(5)


def test_a_lone_rank_of_a_host_uses_shared_tensors(job: Callable[..., Job]) -> None:
    values(job("ab"), apart)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 600), nn.Tanh(), nn.Linear(600, 400), nn.Linear(400, 7))


def losses(model: nn.Module, rank: int) -> list[float]:
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(100 + rank)
    found = []
    for _ in range(5):
        inputs = torch.randn(16, 20, generator=data)
        targets = torch.randint(0, 7, (16,), generator=data)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        steps.zero_grad()
        loss.backward()
        steps.step()
        found.append(loss.item())
    return found


def ddp(rank: int, size: int, views: bool) -> tuple[list[float], list[float], int]:
    gloo = dist.new_group(backend="gloo")
    theirs = losses(DistributedDataParallel(network(), process_group=gloo), rank)
    ours = losses(DistributedDataParallel(network(), gradient_as_bucket_view=views), rank)
    return ours, theirs, backend_of().direct_calls


@pytest.mark.parametrize("views", [False, True])
def test_ddp_uses_shared_memory(job: Callable[..., Job], views: bool) -> None:
    asked = [{"DDP_DISABLE_COMM_MEM": "0"}] * 2
    for ours, theirs, calls in values(job("aa", environments=asked), ddp, views):
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert calls > 0


def fsdp(rank: int, size: int) -> tuple[list[float], list[float], int]:
    def sharded() -> nn.Module:
        model = network()
        mesh = init_device_mesh("cpu", (size,))
        fully_shard(model[2], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    plain = losses(sharded(), rank)
    model = sharded()
    for part in (model, model[2]):
        part.set_allocate_memory_from_process_group_for_comm(True)
    shared = losses(model, rank)
    mesh_group = model[2].weight.device_mesh.get_group()
    return plain, shared, backend_of(mesh_group).direct_calls


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_allocate_memory_from_process_group_for_comm"),
    reason="this torch does not ask backends for memory in FSDP2",
)
def test_fsdp_uses_shared_memory(job: Callable[..., Job]) -> None:
    for plain, shared, calls in values(job("aa"), fsdp):
        assert shared == plain
        assert calls > 0
