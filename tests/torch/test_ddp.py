"""Features of DistributedDataParallel beyond plain steps, over hetcomm as over gloo."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 4

Run = tuple[list[float], np.ndarray]  # losses, parameters


class Network(nn.Module):
    """A network with two branches, of which a step uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 90)
        self.ways = nn.ModuleList(nn.Linear(90, 5) for _ in range(2))

    def forward(self, x: torch.Tensor, way: int = 0) -> torch.Tensor:
        return self.ways[way](torch.tanh(self.first(x)))


def _ddp(group: dist.ProcessGroup, network: nn.Module, **options: float) -> DistributedDataParallel:
    # Several buckets, so that their all-reduces overlap the backward pass.
    options = {"bucket_cap_mb": 0.002} | options
    return DistributedDataParallel(network, process_group=group, **options)


def _batches(rank: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(40 + rank)
    return [
        (torch.randn(6, 12, generator=generator), torch.randint(0, 5, (6,), generator=generator))
        for _ in range(count)
    ]


def _step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], *way: int) -> float:
    loss = nn.functional.cross_entropy(model(batch[0], *way), batch[1])
    loss.backward()
    return loss.item()


def _network() -> Network:
    torch.manual_seed(3)
    return Network()


def _all(network: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)


def no_sync(rank: int, group: dist.ProcessGroup) -> Run:
    """Each rank sums gradients of three batches before the ranks sum theirs."""
    network = _network().requires_grad_()
    network.ways[1].requires_grad_(False)
    model, losses = _ddp(group, network), []
    steps = _optimizer(model)
    batches = _batches(rank, 3 * STEPS)
    for step in range(STEPS):
        with model.no_sync():
            losses += [_step(model, batch) for batch in batches[3 * step : 3 * step + 2]]
        losses.append(_step(model, batches[3 * step + 2]))
        steps.step()
        steps.zero_grad()
    return losses, _all(network)


def unused(rank: int, group: dist.ProcessGroup) -> Run:
    """Parameters with a gradient differ between ranks, and some steps have none."""
    network, losses = _network(), []
    model = _ddp(group, network, find_unused_parameters=True)
    steps = _optimizer(model)
    for step, batch in enumerate(_batches(rank, STEPS)):
        losses.append(_step(model, batch, 1 if step > 1 and rank % 2 else 0))
        steps.step()
        steps.zero_grad()
    return losses, _all(network)


def uneven(rank: int, group: dist.ProcessGroup) -> Run:
    """Rank r has r more batches than rank 0. A sharded optimizer joins, too."""
    network, losses = _network(), []
    network.ways[1].requires_grad_(False)
    model = _ddp(group, network)
    trained = [p for p in model.parameters() if p.requires_grad]
    steps = ZeroRedundancyOptimizer(
        trained, optimizer_class=torch.optim.SGD, process_group=group, lr=0.2
    )
    with Join([model, steps]):
        for batch in _batches(rank, STEPS + rank):
            losses.append(_step(model, batch))
            steps.step()
            steps.zero_grad()
    return losses, _all(network)


def _hooked(
    rank: int, group: dist.ProcessGroup, state: object, hook: Callable, megabytes: float
) -> Run:
    network, losses = _network(), []
    network.ways[1].requires_grad_(False)
    model = _ddp(group, network, gradient_as_bucket_view=True, bucket_cap_mb=megabytes)
    model.register_comm_hook(state, hook)
    steps = _optimizer(model)
    for batch in _batches(rank, STEPS):
        losses.append(_step(model, batch))
        steps.step()
        steps.zero_grad()
    return losses, _all(network)


def fp16_compress(rank: int, group: dist.ProcessGroup) -> Run:
    return _hooked(rank, group, group, default_hooks.fp16_compress_hook, 0.002)


def power_sgd(rank: int, group: dist.ProcessGroup) -> Run:
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    # One bucket: the callbacks of several buckets make collectives in different orders.
    return _hooked(rank, group, state, powerSGD_hook.powerSGD_hook, 25)


TRAININGS = {  # greatest difference of losses and parameters from gloo's
    no_sync: 1e-5, unused: 1e-5, uneven: 1e-5,
    fp16_compress: 2e-3, power_sgd: 1e-3,
}  # fmt: skip


def all_trainings(rank: int, size: int) -> list[tuple[Run, Run]]:
    """All trainings over hetcomm and over gloo. (torch has its bf16 hook with CUDA only.)"""
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    return [(train(rank, ours), train(rank, gloo)) for train in TRAININGS]


@pytest.mark.parametrize("layout", ["ab", "abab"])
def test_losses_and_parameters_equal_gloo(job: Callable[..., Job], layout: str) -> None:
    results = values(job(layout), all_trainings)
    for rank, result in enumerate(results):
        for index, (train, tolerance) in enumerate(TRAININGS.items()):
            where = f"{train.__name__}, rank {rank}"
            (losses, parameters), (wanted, reference) = result[index]
            assert losses == pytest.approx(wanted, rel=tolerance), where
            difference = np.abs(parameters - reference).max()
            assert difference < tolerance, f"{where}: parameters {difference} apart"
            assert np.array_equal(parameters, results[0][index][0][1]), (
                f"{where} has parameters apart"
            )
            assert losses[0] != losses[-1], where
