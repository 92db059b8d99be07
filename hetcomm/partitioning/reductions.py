"""Sums gradients over the gradients level while the backward pass goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hetcomm.partitioning import collectives
from hetcomm.partitioning.collectives import Encoding
from hetcomm.partitioning.flat import Flat
from hetcomm.partitioning.grid import Dimension
from hetcomm.partitioning.stages import InFlight


@dataclass
class Part:
    """A flat gradient on its way: whole at first, at last this rank's part of the sum."""

    flat: Flat
    values: torch.Tensor


class Reduction:
    """The sum of a bucket of flat gradients: along the weights dimension, then the gradients one.

    Each stage runs while later units compute. The results add to `flat.gradient`.
    """

    def __init__(self, parts: list[Part], encoding: Encoding) -> None:
        """With feedback, a bucket has one part, whose name is the key."""
        self.parts, self._encoding = parts, encoding
        self._sent: torch.Tensor | None = None  # lives as long as its stage
        self._sum: torch.Tensor | None = None
        self._work: Any = None
        grid = parts[0].flat.grid
        stages = {"weights": grid.weights, "gradients": grid.gradients}
        self._stages = [(name, along) for name, along in stages.items() if along.size > 1]
        self._start()

    def _start(self) -> None:
        if not self._stages:
            return
        name, along = self._stages.pop(0)
        self._sent = _joined(self.parts, along)
        self._sum = self._sent.new_empty(len(self._sent) // along.size)
        key = f"{self.parts[0].flat.name} {name}"
        self._work = collectives.scatter_sum(self._sum, self._sent, along, self._encoding, key)

    def advance(self) -> bool:
        """Waits for the stage and starts the next one. True after the last: the sum is added."""
        collectives.wait(self._work)
        if self._sent is not None and self._sum is not None:
            scale = len(self._sent) // len(self._sum)
            sizes = [len(part.values) // scale for part in self.parts]
            for part, values in zip(self.parts, self._sum.split(sizes), strict=True):
                part.values = values
        self._work = self._sent = self._sum = None
        more = bool(self._stages)
        if more:
            self._start()
        else:
            for part in self.parts:
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

    def __init__(self, encoding: Encoding, bucket: int) -> None:
        self._encoding, self._bucket = encoding, bucket
        self._parts: list[Part] = []
        self._running: InFlight[Reduction] = InFlight()

    def add(self, flat: Flat) -> None:
        """Takes the gradients of a flat buffer's parameters."""
        if self._parts and self._parts[0].flat.dtype != flat.dtype:
            self.flush()
        self._parts.append(Part(flat, flat.take_gradient()))
        if sum(part.flat.length for part in self._parts) >= self._bucket:
            self.flush()

    def flush(self) -> None:
        """Starts to reduce a bucket that is not full."""
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        while self._encoding.feedback and self._reduces(parts[0].flat):
            self._running.advance()  # sums of one key follow each other
        new = Reduction(parts, self._encoding)
        self._running.advance()
        self._running.append(new)

    def _reduces(self, flat: Flat) -> bool:
        return any(part.flat is flat for each in self._running for part in each.parts)

    def forget(self) -> None:
        """Drops a bucket that is not full, and waits for the others."""
        self._parts = []
        self._running.finish()

    def finish(self) -> None:
        """Waits for all reductions."""
        self.flush()
        self._running.finish()
