"""smoke.py RANK FILE: one of two ranks, which meet in FILE. Prints "fine" at the end."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hetcomm  # noqa: F401  the build is not installed, so torch does not find it by itself


def collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.full((1000,), float(rank + 1))
    dist.all_reduce(total)
    assert total.tolist() == [3.0] * 1000
    with dist._coalescing_manager(async_ops=True) as both:
        parts = [torch.ones(4), torch.ones(6)]
        for part in parts:
            dist.all_reduce(part)
    both.wait()
    assert [part.sum().item() for part in parts] == [8.0, 12.0]
    swapped = torch.empty(2)
    dist.all_to_all_single(swapped, torch.tensor([2.0 * rank, 2.0 * rank + 1]))
    assert swapped.tolist() == [rank, 2.0 + rank]
    objects: list[object] = [{"of": rank}]
    dist.broadcast_object_list(objects)
    assert objects == [{"of": 0}]
    alone = dist.new_subgroups(1)[0]
    dist.barrier(alone)
    if rank == 0:
        dist.send(torch.arange(3.0), 1)
    else:
        received = torch.empty(3)
        dist.recv(received)
        assert received.tolist() == [0.0, 1.0, 2.0]
    assert size == 2


def steps(sharded: bool) -> torch.Tensor:
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(16, 4)
    model = fully_shard(model) if sharded else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((8, 16), 1.0 + dist.get_rank())).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


if __name__ == "__main__":
    number, place = sys.argv[1:]
    dist.init_process_group(
        "hetcomm", init_method=f"file://{place}", rank=int(number), world_size=2
    )
    collectives()
    losses = steps(sharded=False)
    if torch.cuda.is_available() or not torch.__version__.startswith("2.6."):
        # On CPU, fully_shard of torch 2.6 needs functions of streams that only devices' streams
        # have.
        assert torch.allclose(losses, steps(sharded=True), rtol=1e-5)
    dist.destroy_process_group()
    print("fine")
