"""A small GPT as a list of layers that tensor ranks can divide by heads, and how they do."""

from __future__ import annotations

from typing import Any

import gpt
import staged
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

BLOCKS = 4
WIDTH = gpt.WIDTH // gpt.HEADS  # of a head


class Block(nn.Module):
    """Attention to earlier tokens by heads of WIDTH, however many this rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(gpt.WIDTH)
        self.query = nn.Linear(gpt.WIDTH, gpt.WIDTH)
        self.key = nn.Linear(gpt.WIDTH, gpt.WIDTH)
        self.value = nn.Linear(gpt.WIDTH, gpt.WIDTH)
        self.mix = nn.Linear(gpt.WIDTH, gpt.WIDTH)
        self.before_feed = nn.LayerNorm(gpt.WIDTH)
        self.wide = nn.Linear(gpt.WIDTH, 4 * gpt.WIDTH)
        self.narrow = nn.Linear(4 * gpt.WIDTH, gpt.WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before_attention(x)
        query, key, value = (
            layer(normed).view(*x.shape[:2], -1, WIDTH).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.before_feed(x))))


def model(tied: bool = False) -> nn.Sequential:
    """Embedding, BLOCKS blocks and head, with the same parameters every time."""
    made = staged.model(0, tied)
    return nn.Sequential(made[0], *(Block() for _ in range(BLOCKS)), made[1])


def by_names() -> dict[str, ParallelStyle]:
    """The vocabulary, 29, is divided unequally."""
    columns, rows = ("query", "key", "value", "wide"), ("mix", "narrow")
    return {
        "0.tokens": RowwiseParallel(input_layouts=Replicate()),
        **{f"*.{name}": ColwiseParallel() for name in columns},
        **{f"*.{name}": RowwiseParallel() for name in rows},
        str(BLOCKS + 1): ColwiseParallel(output_layouts=Replicate()),
    }


def feed_forward(layer: nn.Module, mesh: Any) -> None:
    """Divides the feed-forward networks alone."""
    if isinstance(layer, Block):
        parallelize_module(layer, mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})


def by_a_function() -> Any:
    return feed_forward
