"""A partitioned GPT has the losses of DistributedDataParallel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
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


def frontier(rank: int, size: int) -> list[Any]:
    """Pairs of ranks inside hosts of four inside the cluster of eight."""
    group = dist.new_group(backend="gloo")
    pairs = [dist.new_group(ranks) for ranks in ([0, 2], [4, 6], [1, 7], [3, 5])]
    mine = next(pair for pair in pairs if pair is not dist.GroupMember.NON_GROUP_MEMBER)
    plain, model = gpt.model(), gpt.model()
    theirs = train(
        DistributedDataParallel(plain, process_group=group), OPTIMIZERS["sgd"](plain.parameters())
    )
    steps = OPTIMIZERS["sgd"](model.parameters())
    partition = hetcomm.partition(model, steps, mine, "host", "cluster")
    ours = train(model, steps)
    return [ours, theirs, [dimension.size for dimension in partition.grid.dimensions]]


def test_three_levels_of_eight_ranks_equal_ddp(job: Callable[..., Job]) -> None:
    for ours, theirs, sizes in values(job("abababab"), frontier):
        assert ours == pytest.approx(theirs, rel=1e-6)
        assert sizes == [2, 2, 2, 1]


def documented(rank: int, size: int, programs: list[str]) -> str:
    names: dict[str, Any] = {}
    for program in programs:
        exec(program, names)
    return str(names["partition"].memory())


def test_programs_of_the_page_work(job: Callable[..., Job], tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "partition.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 2
    programs = [program.replace("step-100", str(tmp_path / "saved")) for program in programs]
    assert values(job("aabb"), documented, programs)[0].startswith("Memory(weights=")
