"""Training by hand on whole parameters: what a partitioned module must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gpt
import torch
import torch.distributed as dist
from torch import nn

import hetcomm

STEPS = 3


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, eps=1e-3)  # tiny gradients are only noise


def losses_of(model: nn.Module, micro: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Of each step and micro-batch, this rank's loss. The caller takes the next after backward."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for step, (tokens, targets) in zip(range(STEPS), gpt.batches(), strict=False):
        mine = slice(rank * gpt.BATCH // size, (rank + 1) * gpt.BATCH // size)
        parts = zip(tokens[mine].chunk(micro), targets[mine].chunk(micro), strict=True)
        for part, wanted in parts:
            yield step, gpt.loss_of(model(part), wanted) / micro


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Callable[[], None],
    clip: Callable[[float, float], torch.Tensor],
    micro: int = 1,
    max_norm: float | None = None,
    norm_type: float = 2.0,
) -> tuple[list[float], list[float]]:
    """Losses and gradient norms. average: of gradients over ranks, before each clip and step."""
    losses, norms = [], []
    for index, (_, loss) in enumerate(losses_of(model, micro)):
        loss.backward()
        losses.append(loss.item())
        if (index + 1) % micro:
            continue
        average()
        if max_norm is not None:
            norms.append(clip(max_norm, norm_type).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def train_by_hand(
    model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, **training: Any
) -> tuple[list[float], list[float]]:
    """As train(). Gradients are averaged over gloo; unused ones are zero."""
    trained = [p for p in model.parameters() if p.requires_grad]

    def average() -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        mean = nn.utils.parameters_to_vector(gradients)
        dist.all_reduce(mean, group=group)
        nn.utils.vector_to_parameters(mean / dist.get_world_size(), gradients)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient

    clip = partial(nn.utils.clip_grad_norm_, trained)
    return train(model, optimizer, average, clip, **training)


def train_partitioned(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    partition: hetcomm.partitioning.Partition,
    **training: Any,
) -> tuple[list[float], list[float]]:
    """As train(). The partition averages gradients."""
    return train(model, optimizer, lambda: None, partition.clip_grad_norm_, **training)


def both(
    build: Callable[[], nn.Module],
    make: Callable[[Any], torch.optim.Optimizer],
    levels: tuple[str, str, str],
    group: dist.ProcessGroup,
    settings: dict[str, Any] | None = None,
    warm: bool = False,
    **training: Any,
) -> dict[str, Any]:
    """Trains a module both ways, and returns the largest differences.

    warm: both are trained by hand before the partition, so that the optimizer has states.
    losses: relative; norms, weights: absolute. moved: how far training moved a weight. norm: the
    largest gradient norm. whole: flat buffers that are still gathered.
    """
    plain, ours, start = build(), build(), build().state_dict()
    steps, optimizer = make(plain.parameters()), make(ours.parameters())
    if warm:
        train_by_hand(plain, steps, group)
        train_by_hand(ours, optimizer, group)
    losses, norms = train_by_hand(plain, steps, group, **training)
    partition = hetcomm.partition(ours, optimizer, *levels, **(settings or {}))
    our_losses, our_norms = train_partitioned(ours, optimizer, partition, **training)
    with partition.gathered():
        weights = ours.state_dict()
        apart = {k: (weights[k] - v).abs().max().item() for k, v in plain.state_dict().items()}
    return {
        "losses": max(abs(a - b) / a for a, b in zip(losses, our_losses, strict=True)),
        "norms": max((abs(a - b) for a, b in zip(norms, our_norms, strict=True)), default=0.0),
        "weights": max(apart.values()),
        "moved": max((v - start[k]).abs().max().item() for k, v in plain.state_dict().items()),
        "norm": max(norms, default=0.0),
        "whole": sum(flat.ready for unit in partition.units for flat in unit.flats),
    }
