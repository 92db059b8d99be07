"""Modules with tied, unused, frozen and checkpointed parameters train alike when partitioned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpt
import pytest
import torch
import torch.distributed as dist
from partitioned import adam, both, sgd
from ranks import Job, values
from torch import nn
from torch.utils.checkpoint import checkpoint

BOUND = 3e-6  # of float32 sums in another order, after a few steps


class Tied(gpt.Gpt):
    """The head has the embedding's weight, and two blocks have one weight in common."""

    def __init__(self) -> None:
        super().__init__(gpt.LAYERS)
        self.head.weight = self.embedding.weight
        self.blocks[2].wide.weight = self.blocks[0].wide.weight


class Unused(gpt.Gpt):
    """A layer that no rank uses, one in a block that odd ranks use, and a block without use."""

    def __init__(self) -> None:
        super().__init__(gpt.LAYERS)
        self.idle = nn.Linear(5, 5)
        for block in self.blocks:
            block.odd = nn.Linear(gpt.WIDTH, gpt.WIDTH)
        self.more = nn.ModuleList([nn.Linear(3, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class OddBlock(gpt.Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return self.odd(x) if dist.get_rank() % 2 else x


class Checkpointed(gpt.Gpt):
    """Repeats blocks in the backward pass: two alone, then two at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) + self.positions
        for block in self.blocks[:2]:
            x = checkpoint(block, x, use_reentrant=False)
        x = checkpoint(lambda y: self.blocks[3](self.blocks[2](y)), x, use_reentrant=False)
        return self.head(x)


class Repeated(gpt.Gpt):
    """Calls the first block again after the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) + self.positions
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.head(x)


@dataclass
class Result:
    x: torch.Tensor
    extra: list[torch.Tensor]


class InResult(nn.Module):
    """A block whose output is in an object. Its second output is an attribute of itself."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.gate = nn.Linear(gpt.WIDTH, 1)

    def forward(self, x: torch.Tensor) -> Result:
        self.penalty = self.gate(x).square().mean()
        return Result(self.block(x), [x])


class Objects(gpt.Gpt):
    def __init__(self) -> None:
        super().__init__(gpt.LAYERS)
        self.blocks = nn.ModuleList(InResult(block) for block in self.blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) + self.positions
        for block in self.blocks:
            x = block(x).x
        return self.head(x) + sum(block.penalty for block in self.blocks)


class Lists(nn.Module):
    """Its layers are lists of layers. Two of them are frozen, and the input needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(gpt.VOCABULARY, gpt.WIDTH).requires_grad_(False)
        layers = [[nn.LayerNorm(gpt.WIDTH), nn.Linear(gpt.WIDTH, gpt.WIDTH)] for _ in range(4)]
        self.layers = nn.ModuleList(nn.ModuleList(pair) for pair in layers)
        self.layers[:2].requires_grad_(False)
        self.head = nn.Linear(gpt.WIDTH, gpt.VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for norm, layer in self.layers:
            x = x + layer(norm(x)).tanh()
        return self.head(x)


def build(kind: str) -> nn.Module:
    torch.manual_seed(7)
    if kind == "frozen":
        model: nn.Module = gpt.Gpt(gpt.LAYERS)
        for name, parameter in model.named_parameters():
            if "wide" in name or "embedding" in name or name.startswith("blocks.1"):
                parameter.requires_grad_(False)
        return model
    kinds = {"tied": Tied, "unused": Unused, "objects": Objects, "lists": Lists}
    others = {"plain": gpt.Gpt, "checkpointed": Checkpointed, "repeated": Repeated}
    model = kinds[kind]() if kind in kinds else others[kind](gpt.LAYERS)
    if kind == "unused":
        for block in model.blocks:
            block.__class__ = OddBlock
    return model


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    """Weight decay for matrices only, and another rate."""
    every = list(parameters)
    matrices = [p for p in every if p.ndim > 1]
    return torch.optim.SGD(
        [
            {"params": matrices, "weight_decay": 0.1},
            {"params": [p for p in every if p.ndim < 2], "lr": 0.02},
        ],
        lr=0.05,
        momentum=0.9,
    )


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | gpt.Block)


def adagrad(parameters: Any) -> torch.optim.Optimizer:
    """Makes states in its constructor."""
    return torch.optim.Adagrad(parameters, lr=0.02, initial_accumulator_value=0.1)


CASES: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "tied parameters": ("tied", sgd, {}, {}),
    "unused parameters": ("unused", adam, {}, {}),
    "frozen parameters": ("frozen", sgd, {}, {}),
    "checkpoints": ("checkpointed", sgd, {}, {}),
    "a unit called twice": ("repeated", sgd, {}, {}),
    "outputs in objects": ("objects", sgd, {}, {}),
    "lists of lists": ("lists", sgd, {}, {}),
    "states of the constructor": ("plain", adagrad, {}, {}),
    "states of earlier steps": ("plain", sgd, {}, {"warm": True}),
    "micro-batches": ("plain", sgd, {}, {"micro": 2}),
    "clipping": ("plain", sgd, {}, {"max_norm": 0.5}),
    "clipping by the largest": ("plain", sgd, {}, {"max_norm": 0.01, "norm_type": float("inf")}),
    "groups of parameters": ("plain", two_groups, {}, {}),
    "units by class": ("plain", sgd, {"units": [gpt.Block]}, {}),
    "units in units": ("plain", sgd, {"units": is_linear}, {}),
    "no prefetch": ("plain", sgd, {"prefetch": False}, {}),
}
LEVELS = [("host", "host", "cluster"), ("cluster", "cluster", "cluster"), ("rank", "host", "host")]


def run(rank: int, size: int, levels: tuple[str, str, str]) -> dict[str, dict[str, Any]]:
    group = dist.new_group(backend="gloo")
    return {
        name: both(lambda kind=kind: build(kind), make, levels, group, settings, **training)  # type: ignore[misc]
        for name, (kind, make, settings, training) in CASES.items()
    }


@pytest.mark.parametrize("levels", LEVELS, ids="-".join)
def test_training_equals_whole_parameters(job: Callable[..., Job], levels: Any) -> None:
    for found in values(job("abab"), run, levels):
        for name, result in found.items():
            assert result["losses"] < BOUND, (name, result)
            assert result["weights"] < BOUND, (name, result)
            assert result["norms"] < BOUND, (name, result)
            assert result["moved"] > 0.001, (name, result)
            if "clipping" in name:
                assert result["norm"] > CASES[name][3]["max_norm"], "nothing was clipped"
            if levels[0] != "rank":
                assert result["whole"] == 0, f"{name}: a unit was not freed"


def test_backends_of_torch_work(job: Callable[..., Job]) -> None:
    levels = ("host", "host", "cluster")
    for result in values(job("aabb", backend="gloo"), run_plain, levels):
        assert result["losses"] < BOUND and result["weights"] < BOUND


def run_plain(rank: int, size: int, levels: tuple[str, str, str]) -> dict[str, Any]:
    return both(lambda: build("plain"), sgd, levels, dist.group.WORLD)
