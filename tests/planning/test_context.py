"""Context ranks train on parts of sequences, and a partition averages their gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gpt
import pytest
import staged
import torch
import torch.distributed as dist
from ranks import Job, values
from staged import OVERLAPPED, layout
from torch import nn

from hetcomm import plan


class Each(nn.Module):
    """A block that computes each token alone, so that a part of a sequence needs no other part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(gpt.WIDTH), nn.Linear(gpt.WIDTH, gpt.WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.wide(self.norm(x)))


def model() -> nn.Sequential:
    torch.manual_seed(7)
    head = nn.Linear(gpt.WIDTH, gpt.VOCABULARY)
    embedding = nn.Embedding(gpt.VOCABULARY, gpt.WIDTH)
    return nn.Sequential(embedding, *(Each() for _ in range(4)), head)


def train(rank: int, size: int, path: Path) -> list[float]:
    job = plan.load(path)
    chunks = plan.split(model(), job)
    parameters = [p for chunk in chunks for p in chunk.parameters()]
    optimizer = gpt.optimizer(iter(parameters))
    partition = plan.partition(chunks, optimizer, job)
    degree = dist.get_world_size(job.context_group)

    def part(batch: torch.Tensor) -> torch.Tensor:
        return job.share(batch).chunk(degree, 1)[job.context_rank]

    tokens = next(staged.batches())[0]
    example = tokens[: job.layout.micro_batch].chunk(degree, 1)[0]
    schedule = plan.schedule(chunks, job, gpt.loss_of, example, partition)
    found = []
    for tokens, targets in staged.batches():
        given = (part(tokens),) if job.is_first else ()
        losses: list[torch.Tensor] = []
        last = {"target": part(targets), "losses": losses} if job.is_last else {}
        schedule.step(*given, **last)
        partition.clip_grad_norm_(staged.CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if job.is_last:
            mean = torch.stack(losses).mean().detach()
            dist.all_reduce(mean, group=job.data_group)
            found.append(mean.item() / dist.get_world_size(job.data_group))
    return found


@pytest.mark.parametrize(
    "chosen",
    [layout([[3, 6]], context=2, **OVERLAPPED), layout([[6]], replicas=2, context=2)],
    ids=["two stages", "two replicas"],
)
def test_losses_equal_those_of_whole_sequences(
    job: Callable[..., Job], tmp_path: Path, chosen: plan.Layout
) -> None:
    chosen.save(tmp_path / "layout.json")
    found = values(job("aaaa", backend="gloo"), train, tmp_path / "layout.json")
    expected = staged.reference(model, clip=True)
    for losses in filter(None, found):
        assert losses == pytest.approx(expected, rel=1e-6)
