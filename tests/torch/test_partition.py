"""A partitioned GPT has the losses of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gpt
import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hetcomm

STEPS = 4
LEVELS = [
    ("rank", "rank", "rank"),  # DDP
    ("rank", "rank", "cluster"),  # ZeRO-1
    ("rank", "host", "cluster"),
    ("host", "host", "cluster"),
    ("host", "host", "host"),
    ("cluster", "cluster", "cluster"),  # ZeRO-3
    ("host", "cluster", "cluster"),
]
OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1),
}


def train(model: nn.Module, steps: torch.optim.Optimizer) -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for _, (tokens, targets) in zip(range(STEPS), gpt.batches(), strict=False):
        share = slice(rank * gpt.BATCH // size, (rank + 1) * gpt.BATCH // size)
        loss = gpt.loss_of(model(tokens[share]), targets[share])
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses


def compare(rank: int, size: int, cases: list[tuple[tuple[str, str, str], str]]) -> list[Any]:
    group = dist.new_group(backend="gloo")
    found, references = [], {}
    for levels, kind in cases:
        if kind not in references:
            plain = gpt.model()
            theirs = train(
                DistributedDataParallel(plain, process_group=group),
                OPTIMIZERS[kind](plain.parameters()),
            )
            references[kind] = theirs, {k: v.clone() for k, v in plain.state_dict().items()}
        model = gpt.model()
        steps = OPTIMIZERS[kind](model.parameters())
        partition = hetcomm.partition(model, steps, *levels)
        ours = train(model, steps)
        with partition.gathered():
            weights = model.state_dict()
            theirs, reference = references[kind]
            apart = max((weights[k] - reference[k]).abs().max().item() for k in reference)
        found.append((levels, kind, ours, theirs, apart))
    return found


@pytest.mark.parametrize("layout", ["aabb", "abab"])
def test_losses_equal_ddp(job: Callable[..., Job], layout: str) -> None:
    cases = [(levels, "sgd") for levels in LEVELS]
    cases += [(LEVELS[3], "adam"), (LEVELS[2], "adamw")]
    for result in values(job(layout), compare, cases):
        for levels, kind, ours, theirs, apart in result:
            assert ours == pytest.approx(theirs, rel=1e-6), (levels, kind)
            assert apart < 2e-6, (levels, kind)
