"""Sums gradients over the gradients level while the backward pass goes on."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from hetcomm.partitioning import collectives
from hetcomm.partitioning.flat import Flat


class Reduction:
    """The sum of one flat gradient: along the weights dimension, then along the gradients one.

    Each stage runs while later units compute. The result adds to `flat.gradient`.
    """

    def __init__(self, flat: Flat, codec: str | None) -> None:
        self._flat, self._codec = flat, codec
        self._buffer = flat.take_gradient()
        self._sent: torch.Tensor | None = None  # lives as long as its stage
        self._work: Any = None
        stages = (flat.grid.weights, flat.grid.gradients)
        self._stages = [dimension for dimension in stages if dimension.size > 1]
        self._start()

    def _start(self) -> None:
        along = self._stages.pop(0) if self._stages else None
        if along is not None:
            self._sent = self._buffer
            self._buffer = self._sent.new_empty(len(self._sent) // along.size)
            self._work = collectives.scatter_sum(self._buffer, self._sent, along, self._codec)

    def advance(self) -> bool:
        """Waits for the stage and starts the next one. True after the last: the sum is added."""
        collectives.wait(self._work)
        self._work = self._sent = None
        more = bool(self._stages)
        if more:
            self._start()
        elif self._flat.gradient is None:
            self._flat.gradient = self._buffer
        else:
            self._flat.gradient += self._buffer
        return not more


class Reductions:
    """The reductions in flight. Their stages start in the same order on all ranks.

    A new reduction moves earlier ones on by one stage, so at most two wait.
    """

    def __init__(self, codec: str | None) -> None:
        self._codec = codec
        self._running: deque[Reduction] = deque()

    def add(self, flat: Flat) -> None:
        new = Reduction(flat, self._codec)
        self._advance()
        self._running.append(new)

    def finish(self) -> None:
        """Waits for all reductions."""
        while self._running:
            self._advance()

    def _advance(self) -> None:
        self._running = deque([each for each in self._running if not each.advance()])
