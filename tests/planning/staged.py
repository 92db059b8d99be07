"""A small GPT as a list of layers, layouts for it, and its training by a layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gpt
import pytest
import torch
import torch.distributed as dist
from ranks import values
from torch import nn

from hetcomm import plan
from hetcomm.partitioning import local
from hetcomm.plan import Layout, Replica, Stage

BATCH, STEPS = 12, 3
CLIP = 0.5  # of the gradient norm
OVERLAPPED = {"gradients": "cluster", "optimizer_states": "cluster", "overlap_optimizer": True}


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(gpt.VOCABULARY, gpt.WIDTH)
        self.positions = nn.Parameter(torch.randn(gpt.TOKENS, gpt.WIDTH) * 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tokens(tokens) + self.positions


def model(blocks: int, tied: bool = False) -> nn.Sequential:
    """Embedding, blocks and head, with the same parameters every time."""
    torch.manual_seed(7)
    head = nn.Linear(gpt.WIDTH, gpt.VOCABULARY)
    embed = Embed()
    if tied:
        embed.tokens.weight = head.weight
    return nn.Sequential(embed, *(gpt.Block() for _ in range(blocks)), head)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """STEPS pairs of tokens and targets, (BATCH, gpt.TOKENS) each."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        text = torch.randint(gpt.VOCABULARY, (BATCH, gpt.TOKENS + 1), generator=generator)
        yield text[:, :-1], text[:, 1:]


def layout(
    ends: Sequence[Sequence[int]],
    replicas: int = 1,
    order: Sequence[int] | None = None,
    tensor: Sequence[int] = (),
    context: int = 1,
    **settings: object,
) -> Layout:
    """ends: of each chunk, the ends of its stages' layers. order: the ranks, stage by stage.
    tensor: the degree of each stage, 1 without. context: of all."""
    stages = len(ends[0])
    sizes = [each * context for each in tensor or (1,) * stages]
    taken = iter(order or range(sum(sizes) * replicas))
    flat = [0, *(end for chunk in ends for end in chunk)]
    return Layout(
        stages=tuple(
            Stage(
                chunks=tuple(
                    (flat[c * stages + s], flat[c * stages + s + 1]) for c in range(len(ends))
                ),
                replicas=tuple(
                    Replica(tuple(next(taken) for _ in range(sizes[s])), context)
                    for _ in range(replicas)
                ),
            )
            for s in range(stages)
        ),
        batch=BATCH,
        **{"micro_batch": 2 if replicas < 4 else 1, **settings},
    )


def reference(make: Callable[[], Any], clip: bool = False) -> list[float]:
    """The loss of every step, if one process trains the unsplit model that `make` returns."""
    alone = make()
    optimizer = gpt.optimizer(alone.parameters())
    losses = []
    for tokens, targets in batches():
        output = alone(tokens)
        loss = gpt.loss_of(getattr(output, "logits", output), targets)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(alone.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] != losses[0]
    return losses


def train(
    rank: int,
    size: int,
    path: Path,
    make: Callable[[], Any],
    partitioned: bool = False,
    divide: Callable[[], Any] | None = None,
) -> list[float]:
    """Trains by the layout of a file, a partition with clipped gradients. The losses of each step
    on the last stage, else none. divide: makes split()'s `tensor`."""
    job = plan.load(path)
    chunks = plan.split(make(), job, divide and divide())
    parameters = [p for chunk in chunks for p in chunk.parameters()]
    optimizer = gpt.optimizer(iter(parameters))
    partition = plan.partition(chunks, optimizer, job) if partitioned else None
    example = next(batches())[0][: job.layout.micro_batch]
    schedule = plan.schedule(chunks, job, gpt.loss_of, example, partition)

    def finish() -> None:
        if partition is None:
            found = [local.values(p.grad) for p in parameters if p.grad is not None]
            average(found, job.data_group)
        else:
            partition.clip_grad_norm_(CLIP)

    return steps(job, schedule, optimizer, finish)


def check(
    job: Any,
    path: Path,
    chosen: Layout,
    make: Callable[[], Any],
    partitioned: bool = False,
    divide: Callable[[], Any] | None = None,
) -> None:
    """Asserts that a model trained by the layout has the losses of the unsplit model."""
    chosen.save(path)
    results = values(job, train, path, make, partitioned, divide)
    last = [losses for losses in results if losses]
    assert len(last) == sum(len(replica.ranks) for replica in chosen.stages[-1].replicas)
    expected = reference(make, partitioned)
    for losses in last:
        assert losses == pytest.approx(expected, rel=1e-6)


def steps(
    job: plan.Job,
    schedule: Any,
    optimizer: torch.optim.Optimizer,
    finish: Callable[[], None] = lambda: None,
) -> list[float]:
    """One pass over the batches. finish: is called before each step of the optimizer."""
    found = []
    for tokens, targets in batches():
        given = (job.share(tokens),) if job.is_first else ()
        losses: list[torch.Tensor] = []
        last = {"target": job.share(targets), "losses": losses} if job.is_last else {}
        schedule.step(*given, **last)
        finish()
        optimizer.step()
        optimizer.zero_grad()
        if job.is_last:
            own = torch.stack(losses).sum().detach()
            dist.all_reduce(own, group=job.data_group)
            found.append(own.item() / sum(job.layout.micro_batches))
    return found


def average(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
        tensor /= dist.get_world_size(group)
