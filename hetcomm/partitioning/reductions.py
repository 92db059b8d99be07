"""Sums gradients over the gradients level while the backward pass goes on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from hetcomm.partitioning import collectives
from hetcomm.partitioning.flat import Flat
from hetcomm.partitioning.grid import Dimension


@dataclass
class Part:
    """A flat gradient on its way: whole at first, at last this rank's part of the sum."""

    flat: Flat
    values: torch.Tensor


class Reduction:
    """The sum of a bucket of flat gradients: along the weights dimension, then the gradients one.

    Each stage runs while later units compute. The results add to `flat.gradient`.
    """

    def __init__(self, parts: list[Part], codec: str | None) -> None:
        self._parts, self._codec = parts, codec
        self._sent: torch.Tensor | None = None  # lives as long as its stage
        self._sum: torch.Tensor | None = None
        self._work: Any = None
        grid = parts[0].flat.grid
        self._stages = [along for along in (grid.weights, grid.gradients) if along.size > 1]
        self._start()

    def _start(self) -> None:
        along = self._stages.pop(0) if self._stages else None
        if along is not None:
            self._sent = _joined(self._parts, along)
            self._sum = self._sent.new_empty(len(self._sent) // along.size)
            self._work = collectives.scatter_sum(self._sum, self._sent, along, self._codec)

    def advance(self) -> bool:
        """Waits for the stage and starts the next one. True after the last: the sum is added."""
        collectives.wait(self._work)
        if self._sent is not None and self._sum is not None:
            scale = len(self._sent) // len(self._sum)
            sizes = [len(part.values) // scale for part in self._parts]
            for part, values in zip(self._parts, self._sum.split(sizes), strict=True):
                part.values = values
        self._work = self._sent = self._sum = None
        more = bool(self._stages)
        if more:
            self._start()
        else:
            for part in self._parts:
                if part.flat.gradient is None:
                    part.flat.gradient = part.values
                else:
                    part.flat.gradient += part.values
        return not more


def _joined(parts: list[Part], along: Dimension) -> torch.Tensor:
    """All values, those of the first rank's parts first, as a reduce-scatter divides them."""
    if len(parts) == 1:
        return parts[0].values
    return torch.cat([part.values.view(along.size, -1) for part in parts], dim=1).reshape(-1)


class Reductions:
    """The reductions in flight. Their stages start in the same order on all ranks.

    A new reduction moves earlier ones on by one stage, so at most two wait. A bucket is reduced
    when it has at least `bucket` elements.
    """

    def __init__(self, codec: str | None, bucket: int) -> None:
        self._codec, self._bucket = codec, bucket
        self._parts: list[Part] = []
        self._running: deque[Reduction] = deque()

    def add(self, flat: Flat) -> None:
        """Takes the gradients of a flat buffer's parameters."""
        if self._parts and self._parts[0].flat.dtype != flat.dtype:
            self.flush()
        self._parts.append(Part(flat, flat.take_gradient()))
        if sum(part.flat.length for part in self._parts) >= self._bucket:
            self.flush()

    def flush(self) -> None:
        """Starts to reduce a bucket that is not full."""
        if self._parts:
            new = Reduction(self._parts, self._codec)
            self._parts = []
            self._advance()
            self._running.append(new)

    def forget(self) -> None:
        """Drops a bucket that is not full, and waits for the others."""
        self._parts = []
        self.finish()

    def finish(self) -> None:
        """Waits for all reductions."""
        self.flush()
        while self._running:
            self._advance()

    def _advance(self) -> None:
        self._running = deque([each for each in self._running if not each.advance()])
