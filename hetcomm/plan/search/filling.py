"""Whether runs of stages hold all blocks within some seconds, before any division of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.search.division import Floats, exclusive_cumsum
from hetcomm.plan.search.shapes import Part


class Prices(Protocol):
    """Seconds that shapes take at least."""

    def block_seconds(self, pool: int, tensor: int, context: int, micro_batch: int) -> float | None:
        """In which a replica computes one block forward and backward; None where the degrees are
        impossible."""

    def forward_seconds(self, part: Part, micro_batch: int) -> float:
        """In which a replica computes one block forward."""

    def back_seconds(self, part: Part, micro_batch: int, chunks: int) -> float:
        """In which a gradient passes one block, with a schedule of so many chunks."""

    def transfer(self, part: Part, count: int, micro_batch: int, across: bool) -> float:
        """From one of `count` stages of equal parts to the next."""

    def rows(
        self, parts: tuple[Part, ...], count: int, micro_batch: int, across: bool
    ) -> Sequence[Floats]:
        """Of each of `count` stages with these parts, [n] -> seconds of a step in which the stage
        has n blocks or more."""

    def alone(
        self, parts: tuple[Part, ...], count: int, micro_batch: int, across: bool
    ) -> Sequence[Floats]:
        """The same from the stage's first pass to the end of the step."""

    def most_chunks(self, stages: int, micro_batches: int) -> int:
        """The most chunks that a stage may have."""


@dataclass(frozen=True)
class StageRun:
    """Consecutive stages of equal parts. rows: of each, [n] -> seconds from its first pass to the
    end of a step in which it has n blocks or more. transfer: from one of them to the next, at
    least."""

    part: Part
    stages: int
    rows: tuple[Floats, ...]
    transfer: float

    @cached_property
    def seconds(self) -> float:
        """Of a step for each block of a stage, at least."""
        unlike = {id(row): row for row in self.rows}.values()
        return min(float((row[1:] / np.arange(1, len(row))).min()) for row in unlike)


class Way(NamedTuple):
    """Seconds of a block on a run's stages, with a schedule of so many chunks: on the way in and
    back of the first chunk, and of the stage's own passes until the last one comes back."""

    forward: float
    back: float
    busy: float


class Pipes:
    """Runs of stages in an order. blocks: of the model."""

    def __init__(
        self, order: Sequence[StageRun], prices: Prices, blocks: int, micro_batch: int, batch: int
    ) -> None:
        self.order, self.prices, self.blocks, self.micro_batch = order, prices, blocks, micro_batch
        self.stages = sum(run.stages for run in order)
        self.micro_batches = batch // (order[0].part.count * micro_batch)
        most = prices.most_chunks(self.stages, self.micro_batches)
        self.chunks = (1, most) if most > 1 else (1,)

    def filled(self) -> float:
        """Seconds in which the stages hold all blocks, if blocks may be divided.

        The less a stage leaves on the ways in and back, the sooner others start and end. A schedule
        with chunks leaves its first chunk there.
        """
        return min(self._filled(chunks) for chunks in self.chunks)

    def may_take(self, below: float) -> bool:
        """Whether the stages may hold all blocks, whole ones, in less than so many seconds."""
        return any(self._holds(below, chunks) for chunks in self.chunks)

    def _ways(self, chunks: int) -> list[Way]:
        """Of each run."""
        found, place = [], 0
        for run in self.order:
            part, place = run.part, place + run.stages
            forward = self.prices.forward_seconds(part, self.micro_batch)
            back = self.prices.back_seconds(part, self.micro_batch, chunks)
            block = self.prices.block_seconds(
                part.pool, part.tensor, part.context, self.micro_batch
            )
            assert block is not None
            deferred = min(place, self.micro_batches) * (block - forward - back)
            busy = self.micro_batches * block - (deferred if chunks == 1 else 0.0)
            found.append(Way(forward, back, busy))
        return found

    def _filled(self, chunks: int) -> float:
        """By the way in alone, with all that follows the passes; and by both ways."""
        ways = self._ways(chunks)
        alone = both = (0.0, 0.0)
        for run, way in zip(reversed(self.order), reversed(ways), strict=True):
            alone = _held(alone, run, way.forward / chunks, run.seconds, 1)
            both = _held(both, run, (way.forward + way.back) / chunks, way.busy, 2)
        # The embedding is one of the layers of the first chunk.
        hidden = 1 - 1 / chunks
        first = (ways[0].forward * hidden, (ways[0].forward + ways[0].back) * hidden)
        return max(
            (self.blocks + lost) / rate - less
            for (rate, lost), less in zip((alone, both), first, strict=True)
        )

    def _holds(self, below: float, chunks: int) -> bool:
        """A stage holds the more, the less is before it. If all stages together hold few blocks
        more than there are, each has nearly as many as it can hold."""
        ways = self._ways(chunks)
        each = np.repeat(np.arange(len(ways)), [run.stages for run in self.order])
        forward, back, busy = np.array(ways).T[:, each]
        moved = np.concatenate([[0.0] + [run.transfer] * (run.stages - 1) for run in self.order])
        least = np.ones(self.stages, dtype=np.int64)
        least[[0, -1]] = 0  # with the embedding, and the head
        first = np.zeros(self.stages, dtype=np.int64)
        first[0] = 1
        while True:
            own = -(-(least + first) // chunks) - first  # of the first chunk
            start = exclusive_cumsum(forward * own) + np.cumsum(moved)
            left = below - start - exclusive_cumsum(back * own) - np.cumsum(moved)
            most = np.floor(left / busy + 1e-9)
            most = np.minimum(most, self._most(below - start))
            spare = most.sum() - self.blocks
            if spare < 0 or (most < least).any():
                return False
            more = np.maximum(least, (most - spare).astype(np.int64))
            if (more == least).all():
                return True
            least = more

    def _most(self, left: Floats) -> NDArray[np.int64]:
        """The blocks that each stage holds in so many seconds, with what follows its passes."""
        found, place = [], 0
        for run in self.order:
            own = left[place : place + run.stages]
            place += run.stages
            if all(row is run.rows[0] for row in run.rows):
                found.append(np.searchsorted(run.rows[0], own, "right") - 1)
            else:
                pairs = zip(run.rows, own, strict=True)
                found.append(np.array([np.searchsorted(r, t, "right") - 1 for r, t in pairs]))
        return np.concatenate(found)


def _held(
    later: tuple[float, float], run: StageRun, way: float, seconds: float, transfers: int
) -> tuple[float, float]:
    """(v, w) of stages that hold v T - w blocks in T seconds, with a run before them.

    With x blocks on a stage, the next one has way x + transfer seconds less. A stage holds
    T / seconds blocks. Hence v becomes v + (1 - way v) / seconds, or stays if the stage is so slow
    that no block is best; w becomes w + v transfer.
    """
    rate, lost = later
    most, transfer = 1 / way, transfers * run.transfer
    if rate >= most:
        return rate, lost + (run.stages - 1) * transfer * rate
    kept = (1 - way / seconds) ** run.stages
    # The sum of the rates with each stage of the run but the first.
    rates = (run.stages - 1) * most
    rates -= (most - rate) * ((1 - way / seconds) - kept) * seconds / way
    return kept * rate + (1 - kept) * most, lost + transfer * rates
