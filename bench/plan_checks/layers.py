"""Layers whose passes sleep: an emulated device of a stated speed, with real bytes.

Weights, gradients and activations have the sizes of a `Model` and travel for real. The passes sleep
instead of computing, so many ranks share few processors without slowing each other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hetcomm.plan.model import Model


@dataclass(frozen=True)
class Speed:
    """Seconds of a block's forward pass: of each sample, and of each pass beside that. Backward
    passes take twice as long. head: how many blocks the head is worth."""

    sample: float
    launch: float = 0.001
    head: float = 1.0
    slower: float = 1.0  # than this, of the kind of device

    def seconds(self, kind: str, samples: int) -> tuple[float, float]:
        """Forward and backward."""
        blocks = {"embedding": 0.1, "block": 1.0, "head": self.head}[kind]
        forward = self.slower * blocks * (self.launch + self.sample * samples)
        return forward, 2 * forward


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, weight: torch.Tensor, forward: float, backward: float
    ) -> torch.Tensor:
        end = time.perf_counter() + forward
        context.seconds, context.size = backward, weight.shape
        y = x.clone()
        _sleep(end)
        return y

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        end = time.perf_counter() + context.seconds
        of_weight = torch.full(context.size, 1e-3)
        of_input = gradient.clone() if context.needs_input_grad[0] else None
        _sleep(end)
        return of_input, of_weight, None, None


def _sleep(end: float) -> None:
    left = end - time.perf_counter()
    if left > 0:
        time.sleep(left)


class Layer(nn.Module):
    """A layer of one kind: (samples, sequence, hidden) in and out; the embedding takes (samples,),
    the head gives (samples,)."""

    def __init__(self, model: Model, kind: str, speed: Speed) -> None:
        super().__init__()
        self.model, self.kind, self.speed = model, kind, speed
        self.weight = nn.Parameter(torch.zeros(model.parameters(kind)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "embedding":
            x = x[:, None, None].expand(-1, self.model.sequence, self.model.hidden)
        seconds = self.speed.seconds(self.kind, len(x)) if torch.is_grad_enabled() else (0.0, 0.0)
        y = _Pass.apply(x, self.weight, *seconds)
        return y[:, 0, 0] if self.kind == "head" else y


def layers(model: Model, speed: Speed) -> list[Layer]:
    """Of a whole model, on a device of this speed."""
    return [Layer(model, model.kind(index), speed) for index in range(model.layers)]
