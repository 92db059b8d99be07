"""A small GPT on a fixed sequence of batches, and its losses when one process trains it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import nn

STEPS = 50
BATCH, TOKENS, VOCABULARY, WIDTH, HEADS, LAYERS = 8, 12, 29, 32, 2, 4
RATE = 0.05  # with 8 layers, four times this rate diverges
TOLERANCE = 2e-4  # of a loss, relative; sums in another order, repeated 50 times


class Block(nn.Module):
    """Attention to earlier tokens, then a feed-forward network; [batch, tokens, WIDTH] to same."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.to_heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.from_heads = nn.Linear(WIDTH, WIDTH)
        self.before_feed = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        heads = self.to_heads(self.before_attention(x)).view(batch, tokens, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.from_heads(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.narrow(nn.functional.gelu(self.wide(self.before_feed(x))))


class Gpt(nn.Module):
    """Tokens [batch, TOKENS] to logits [batch, TOKENS, VOCABULARY]. A part may have fewer blocks,
    and lack the first or last layer, as a stage of a pipeline does."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head: nn.Module | None = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def model(layers: int = LAYERS) -> Gpt:
    """A model with the same parameters every time."""
    torch.manual_seed(7)
    return Gpt(layers)


def stage(index: int, stages: int, layers: int) -> Gpt:
    """An equal part of model(layers)."""
    whole = model(layers)
    per_stage = layers // stages
    whole.blocks = whole.blocks[index * per_stage : (index + 1) * per_stage]
    if index > 0:
        whole.embedding = None
        del whole.positions
    if index < stages - 1:
        whole.head = None
    return whole


def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """STEPS pairs of tokens and targets, [BATCH, TOKENS] each, of a sequence that can be learnt."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        start = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator)
        stride = torch.randint(1, 4, (BATCH, 1), generator=generator)
        text = (start + stride * torch.arange(TOKENS + 1)) % VOCABULARY
        yield text[:, :-1], text[:, 1:]


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


@lru_cache
def reference(layers: int) -> list[float]:
    """The loss of every step, if this process trains alone."""
    alone = model(layers)
    steps = optimizer(alone.parameters())
    losses = []
    for tokens, targets in batches():
        loss = loss_of(alone(tokens), targets)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, "nothing was learned"
    return losses
