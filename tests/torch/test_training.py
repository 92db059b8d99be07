"""DistributedDataParallel over hetcomm has the losses of gloo."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def _train(rank: int, size: int, group: dist.ProcessGroup) -> tuple[list[float], torch.Tensor]:
    torch.manual_seed(rank)  # DDP must begin from rank 0's parameters
    network = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.LayerNorm(300), nn.Linear(300, 7))
    # Several buckets, so that their all-reduces overlap the backward pass.
    model = DistributedDataParallel(network, process_group=group, bucket_cap_mb=0.02)
    data = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(16, 20, generator=data)
        targets = torch.randint(0, 7, (16,), generator=data)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.2 * parameter.grad
        losses.append(loss.item())
    return losses, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def train(rank: int, size: int) -> tuple[list[float], list[float], bytes, float]:
    ours, parameters = _train(rank, size, dist.group.WORLD)
    theirs, reference = _train(rank, size, dist.new_group(backend="gloo"))
    difference = (parameters - reference).abs().max().item()
    return ours, theirs, parameters.numpy().tobytes(), difference


@pytest.mark.parametrize("layout", ["a", "aa", "ab", "abb", "baabb"])
def test_losses_equal_gloo(job: Callable[..., Job], layout: str) -> None:
    results = values(job(layout), train)
    for rank, (ours, theirs, parameters, difference) in enumerate(results):
        assert ours == pytest.approx(theirs, rel=1e-5), f"rank {rank}"
        assert difference < 1e-5, f"rank {rank}: parameters {difference} apart"
        assert parameters == results[0][2], f"rank {rank}'s parameters differ from rank 0's in bits"
    assert results[0][0][0] != results[0][0][-1], "nothing was learned"
