"""A GPT trained in parallel over hetcomm has the losses of one process."""

from __future__ import annotations

from collections.abc import Callable

import gpt
import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel


def _train_on_shares(model: nn.Module, steps: torch.optim.Optimizer) -> list[float]:
    """Trains each rank on its share of every batch. Returns the losses over whole batches."""
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for tokens, targets in gpt.batches():
        share = slice(rank * gpt.BATCH // size, (rank + 1) * gpt.BATCH // size)
        loss = gpt.loss_of(model(tokens[share]), targets[share])
        steps.zero_grad()
        loss.backward()
        steps.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item() / size)
    return losses


def ddp(rank: int, size: int) -> list[float]:
    model = DistributedDataParallel(gpt.model(), bucket_cap_mb=0.02)
    return _train_on_shares(model, gpt.optimizer(model.parameters()))


def zero(rank: int, size: int) -> list[float]:
    model = DistributedDataParallel(gpt.model())
    steps = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=gpt.RATE, momentum=0.9
    )
    return _train_on_shares(model, steps)


def fsdp(rank: int, size: int, shape: tuple[int, ...]) -> list[float]:
    names = ("replicas", "shards")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = gpt.model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _train_on_shares(model, gpt.optimizer(model.parameters()))


def tensor_parallel(rank: int, size: int) -> list[float]:
    mesh = init_device_mesh("cpu", (size,))
    model = gpt.model()
    for block in model.blocks:
        parallelize_module(block, mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    steps = gpt.optimizer(model.parameters())
    losses = []
    for tokens, targets in gpt.batches():
        loss = gpt.loss_of(model(tokens), targets)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses


def pipeline(rank: int, size: int, schedule: str, layers: int = gpt.LAYERS) -> list[float] | None:
    per_rank = 2 if schedule == "interleaved" else 1
    parts, stages = [], []
    for index in range(rank, size * per_rank, size):
        parts.append(gpt.stage(index, size * per_rank, layers))
        stages.append(PipelineStage(parts[-1], index, size * per_rank, torch.device("cpu")))
    kinds = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
    run = kinds[schedule](
        stages if per_rank > 1 else stages[0], n_microbatches=4, loss_fn=gpt.loss_of
    )
    steps = gpt.optimizer([p for part in parts for p in part.parameters()])
    losses = []
    for tokens, targets in gpt.batches():
        steps.zero_grad()
        of_parts: list[torch.Tensor] = []
        # Rank 0 has the first stage, the last rank the last one.
        first = (tokens,) if rank == 0 else ()
        last = {"target": targets, "losses": of_parts} if rank == size - 1 else {}
        run.step(*first, **last)
        steps.step()
        losses.append(sum(loss.item() for loss in of_parts) / 4)
    return losses if rank == size - 1 else None


CASES = [
    pytest.param(ddp, (), "abab", id="DDP"),
    pytest.param(zero, (), "ab", id="ZeRO"),
    pytest.param(zero, (), "abab", id="ZeRO of 4"),
    pytest.param(fsdp, ((2,),), "ab", id="FSDP2 of 2"),
    pytest.param(fsdp, ((4,),), "aabb", id="FSDP2"),
    pytest.param(fsdp, ((2, 2),), "aabb", id="HSDP over islands"),
    pytest.param(tensor_parallel, (), "aa", id="tensor parallel"),
    pytest.param(tensor_parallel, (), "abab", id="tensor parallel over islands"),
    pytest.param(pipeline, ("gpipe",), "ab", id="GPipe"),
    pytest.param(pipeline, ("gpipe",), "abab", id="GPipe of 4"),
    pytest.param(pipeline, ("1f1b",), "ab", id="1F1B of 2"),
    pytest.param(pipeline, ("1f1b",), "abab", id="1F1B"),
    pytest.param(pipeline, ("interleaved",), "ab", id="interleaved 1F1B"),
]


@pytest.mark.parametrize(("train", "arguments", "layout"), CASES)
def test_losses_equal_one_process(
    job: Callable[..., Job],
    train: Callable[..., list[float] | None],
    arguments: tuple,
    layout: str,
) -> None:
    results = [losses for losses in values(job(layout), train, *arguments) if losses is not None]
    assert results
    for losses in results:
        assert losses == pytest.approx(gpt.reference(gpt.LAYERS), rel=gpt.TOLERANCE)


def test_interleaved_stages_of_four_ranks_train(job: Callable[..., Job]) -> None:
    results = values(job("abab"), pipeline, "interleaved", 8)
    assert results[3] == pytest.approx(gpt.reference(8), rel=gpt.TOLERANCE)


def dtensors(rank: int, size: int) -> None:
    """Every change of placement, and matrix products whose operands are sharded in every way."""
    mesh = init_device_mesh("cpu", (size,))
    placements = (Shard(0), Shard(1), Replicate())
    # Small integers: sums are exact, and neither dimension is a multiple of the ranks.
    generator = torch.Generator().manual_seed(3)
    left, right = (
        torch.randint(-9, 9, shape, generator=generator).float() for shape in ((7, 13), (13, 6))
    )
    for one in placements:
        split = distribute_tensor(left, mesh, [one])
        for other in placements:
            again = split.redistribute(mesh, [other])
            assert again.placements == (other,)
            assert torch.equal(again.full_tensor(), left), (one, other)
            product = split @ distribute_tensor(right, mesh, [other])
            assert torch.equal(product.full_tensor(), left @ right), (one, other)
    mine = DTensor.from_local(left * (rank + 1), mesh, [Partial()])
    total = left * (size * (size + 1) / 2)
    for other in placements:
        summed = mine.redistribute(mesh, [other])
        assert torch.equal(summed.full_tensor(), total), other


@pytest.mark.parametrize("layout", ["ab", "abab"])
def test_dtensors_work(job: Callable[..., Job], layout: str) -> None:
    values(job(layout), dtensors)
