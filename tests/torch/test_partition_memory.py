"""A partition holds the bytes of the formula, and works in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpt
import pytest
import torch
import torch.distributed as dist
from partitioned import STEPS, adam, losses_of, train_partitioned
from ranks import Job, values
from torch import nn

import hetcomm
from hetcomm.partitioning import Partition, predict_memory

Levels = tuple[str, str, str]
RANKS = {"rank": 1, "host": 2, "cluster": 4}
LEVELS: list[Levels] = [
    ("rank", "rank", "rank"),
    ("rank", "host", "cluster"),
    ("host", "host", "cluster"),
    ("host", "cluster", "cluster"),
    ("cluster", "cluster", "cluster"),
]


def padding_of(partition: Partition) -> int:
    """Elements of the whole job's trainable buffers that hold no parameter."""
    flats = [flat for unit in partition.units for flat in unit.trainable]
    return sum(flat.length - flat.used for flat in flats)


def held(rank: int, size: int, dtype: torch.dtype | None) -> list[Any]:
    found = []
    for levels in LEVELS:
        model = gpt.model()
        parameters = sum(p.numel() for p in model.parameters())
        optimizer = adam(model.parameters())
        partition = hetcomm.partition(model, optimizer, *levels, dtype=dtype)
        for _, loss in losses_of(model, 1):
            loss.backward()
            optimizer.step()  # gradients stay until zero_grad()
        padding = padding_of(partition)
        gathered = sum(
            flat.full.untyped_storage().nbytes()
            for unit in partition.units
            for flat in unit.flats
            if flat.full is not flat.weights
        )
        held, predicted = partition.memory(), partition.predicted_memory()
        optimizer.zero_grad()
        cleared = partition.memory().gradients
        found.append((levels, parameters, padding, held, predicted, gathered, cleared))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, None], ids=["bfloat16", "float32"])
def test_memory_is_that_of_the_formula(job: Callable[..., Job], dtype: Any) -> None:
    bytes_of = {"weight_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 12}
    if dtype is None:  # the optimizer changes float32 weights themselves
        bytes_of = {"weight_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    for result in values(job("abab"), held, dtype):
        for levels, parameters, padding, actual, predicted, gathered, cleared in result:
            ranks = [RANKS[level] for level in levels]
            assert predicted == predict_memory(parameters, *ranks, **bytes_of), levels
            padded = predict_memory(parameters + padding, *ranks, **bytes_of)
            assert actual.weights == padded.weights, levels
            assert actual.gradients == padded.gradients, levels
            # Moments have no padding. All of it may be on one rank.
            slack = 8 * padding
            assert padded.optimizer - slack <= actual.optimizer <= padded.optimizer, levels
            assert padding < 0.01 * parameters
            assert gathered == 0 and cleared == 0


def test_formula_is_that_of_the_paper() -> None:
    assert predict_memory(20, 2, 8, 16).total == 2 * 20 / 2 + 2 * 20 / 8 + 12 * 20 / 16


def watch(rank: int, size: int, prefetch: bool) -> tuple[list[int], list[int]]:
    model = gpt.model(6)
    optimizer = adam(model.parameters())
    partition = hetcomm.partition(
        model, optimizer, "host", "host", "cluster", prefetch=prefetch, sync=False
    )
    seen: list[int] = []

    def note() -> None:
        flats = [flat for unit in partition.units[1:] for flat in unit.flats]
        seen.append(sum(flat.full.untyped_storage().nbytes() > 0 for flat in flats))

    def note_passes(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
        note()
        if output.requires_grad:
            output.register_hook(lambda _: note())

    for block in model.blocks:
        block.wide.register_forward_hook(note_passes)
    train_partitioned(model, optimizer, partition)
    trained = list(seen)
    seen.clear()
    with torch.no_grad():
        model(next(gpt.batches())[0])
    return trained, seen


@pytest.mark.parametrize("prefetch", [True, False])
def test_few_units_are_gathered_at_a_time(job: Callable[..., Job], prefetch: bool) -> None:
    for trained, evaluated in values(job("aa"), watch, prefetch):
        assert len(trained) == 6 * 2 * STEPS and len(evaluated) == 6
        assert max(trained) == max(evaluated) == (2 if prefetch else 1)
        assert min(trained) == min(evaluated) == 1


def half(rank: int, size: int, levels: Levels, dtype: torch.dtype | None) -> list[float]:
    model = gpt.model()
    optimizer = adam(model.parameters())
    partition = hetcomm.partition(model, optimizer, *levels, dtype=dtype)
    losses, _ = train_partitioned(model, optimizer, partition)
    kinds = {p.dtype for group in optimizer.param_groups for p in group["params"]}
    assert kinds <= {torch.float32} and {p.dtype for p in model.parameters()} == {
        dtype or torch.float32
    }
    mean = torch.tensor(losses)
    dist.all_reduce(mean)
    return (mean / size).tolist()


def test_bfloat16_losses_are_near_those_of_float32(job: Callable[..., Job]) -> None:
    whole = values(job("aabb"), half, ("rank", "rank", "rank"), torch.bfloat16)[0]
    parts = values(job("abab"), half, ("host", "host", "cluster"), torch.bfloat16)[0]
    exact = values(job("abab"), half, ("host", "host", "cluster"), None)[0]
    assert whole == pytest.approx(exact, rel=0.01)
    assert parts == pytest.approx(exact, rel=0.01)
    assert parts != exact


class Stateful(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        self.register_buffer("mask", torch.arange(3) < seed)
        self.steps = nn.Parameter(torch.tensor([seed]), requires_grad=False)  # an integer
        self.fail = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(x) * 1.0
        if self.fail:
            x.register_hook(self.stop)
        return x

    def stop(self, gradient: torch.Tensor) -> None:
        raise ZeroDivisionError


def uses(rank: int, size: int) -> dict[str, Any]:
    model = Stateful(rank + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    partition = hetcomm.partition(model, optimizer, "host", "host", "cluster")
    found: dict[str, Any] = {"buffers": [model.mask.tolist(), model.steps.tolist()]}
    found["shape"] = [tuple(p.shape) for p in model.parameters()]

    def weights() -> list[torch.Tensor]:
        with partition.gathered():
            return [value.clone() for value in model.state_dict().values()]

    def change() -> float:
        old = weights()
        optimizer.step()
        pairs = zip(old, weights(), strict=True)
        return max((a.double() - b.double()).abs().max().item() for a, b in pairs)

    x = torch.ones(3, 4) + torch.arange(3)[:, None] * rank
    found["without a backward pass"] = change()
    model(x).square().sum().backward()
    model.zero_grad()
    found["after zero_grad()"] = change()
    model.fail = True
    try:
        model(x).square().sum().backward()
    except ZeroDivisionError:
        model.fail = False
    model.eval()
    loss = model(x).sum()
    loss.backward()
    first = change()
    rate.step()
    second = change()  # the gradient is still there, the rate is half
    found["rates"] = second / first
    found["placeholder"] = [p.isnan().all().item() for p in model.layers.parameters()]
    return found


def test_other_uses_follow_torch(job: Callable[..., Job]) -> None:
    for found in values(job("abab"), uses):
        assert found["buffers"] == [[True, False, False], [1]]
        assert found["shape"][1:3] == [(6, 4), (6,)]
        assert found["without a backward pass"] == 0
        assert found["after zero_grad()"] == 0
        assert found["rates"] == pytest.approx(0.5, rel=1e-4)
        assert all(found["placeholder"])


def evaluate_on_one_rank(rank: int, size: int) -> float:
    model = gpt.model()
    optimizer = adam(model.parameters())
    hetcomm.partition(model, optimizer, "rank", "host", "cluster")
    loss = torch.zeros(())
    for step, loss in losses_of(model, 1):
        if rank == step:
            with torch.no_grad():
                model(next(gpt.batches())[0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def test_one_rank_may_evaluate_with_whole_weights(job: Callable[..., Job]) -> None:
    assert all(loss > 0 for loss in values(job("aabb"), evaluate_on_one_rank))
