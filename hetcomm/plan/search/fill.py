"""The relaxation of a search: the least seconds in which the stages of a shape hold all blocks.

Every schedule computes each micro-batch on each stage, forward and backward. The first activation
reaches a stage after the forward passes before it, and the last gradient passes all these stages on
its way back. So within T seconds a stage has time for fewer blocks, the more there are before it.
All stages together must have time and memory for the model's blocks. Passes that wait for another
stage's slower pass are left out: no layout takes less than the relaxation says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.search.facts import Facts, Line, Stages
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.settings import Settings
from hetcomm.plan.search.space import LONGEST, SHORTEST, Floats
from hetcomm.plan.search.terms import Terms

ROUNDS = 8  # in which stages get blocks that they have at least
NEAR = 1e-3  # a bisection ends this near to its result


@dataclass(frozen=True, eq=False)
class Filling:
    """The stages of a shape with several settings."""

    terms: Terms
    probes: Probes
    options: Sequence[Settings]

    @cached_property
    def facts(self) -> Facts:
        return Stages(self.terms, self.probes, self.options).facts()

    def bounds(self, below: float) -> Floats:
        """By setting: seconds that no division of the layers beats; infinite from `below` on."""
        return self._least(np.arange(len(self.options)), self._fewest, None, below)

    def of_divisions(self, index: int, first: Sequence[int], below: float) -> Floats:
        """bounds() of one setting with so many blocks on the first stages, by the number of blocks
        on the next one. The last stage has those that are left."""
        stage, stages = len(first), self._fewest.shape[-1]
        left = self.terms.problem.model.blocks - sum(first)
        counts = np.arange(left + 1)
        fewest = np.repeat(self._fewest[index : index + 1], left + 1, axis=0)
        most = np.full_like(fewest, left)
        for fixed in (fewest, most):
            fixed[:, :stage] = first
            fixed[:, stage] = counts
            if stage + 2 == stages:
                fixed[:, -1] = left - counts
        possible = (fewest >= self._fewest[index]).all(axis=-1)
        found = np.full(left + 1, np.inf)
        rows = np.full(int(possible.sum()), index)
        found[possible] = self._least(rows, fewest[possible], most[possible], below)
        return found

    def _least(
        self, rows: NDArray[np.intp], fewest: NDArray[np.int64], most: NDArray[np.int64] | None,
        below: float,
    ) -> Floats:  # fmt: skip
        """By row: seconds that no division beats with the setting of the row, and with so many
        blocks on each stage."""
        facts, least = self.facts.of(rows), fewest
        if most is not None:
            facts = facts._replace(most=np.minimum(facts.most, most))
        low = np.maximum(np.maximum(self._parted(facts, rows), self._moved[rows]), SHORTEST)
        high = np.full(len(rows), min(below, LONGEST))
        enough = (low < high) & self._holds(facts, rows, least, high)
        while (wide := enough & (high - low > NEAR * low)).any():
            middle = np.sqrt(low * high)
            holds = self._holds(facts, rows, least, middle)
            low = np.where(wide & ~holds, middle, low)
            high = np.where(wide & holds, middle, high)
        return np.where(enough, low, np.inf)

    def division(self, index: int, seconds: float) -> tuple[int, ...]:
        """The layers of each stage with a setting, in hardly more than so many seconds: one stage
        after another holds as many blocks as it can, or few if it delays the others too much."""
        facts = self.facts.of(index)
        fewest = self._fewest[index]
        blocks, low, high = self.terms.problem.model.blocks, seconds, 2 * seconds
        while (counts := self._greedy(facts, index, high)).sum() < blocks and high < 64 * seconds:
            low, high = high, 2 * high
        while high - low > NEAR * low:
            middle = (low + high) / 2
            found = self._greedy(facts, index, middle)
            if found.sum() < blocks:
                low = middle
            else:
                counts, high = found, middle
        load = facts.passes.plus(facts.tail).block.max(axis=0)
        for _ in range(max(0, int(counts.sum()) - blocks)):
            counts[np.argmax(np.where(counts > fewest, counts * load, -1.0))] -= 1
        for _ in range(max(0, blocks - int(counts.sum()))):  # memory is short
            counts[np.argmin(counts * load)] += 1
        counts[0] += 1
        counts[-1] += 1
        return tuple(counts.tolist())

    def _greedy(self, facts: Facts, index: int, seconds: float) -> NDArray[np.int64]:
        """The blocks of each stage in so many seconds. facts: of one setting."""
        fewest, chunks = self._fewest[index], self.options[index].chunks
        counts = fewest.copy()
        way = facts.ahead.plus(facts.back).block.max(axis=0) / chunks
        later = np.zeros(len(counts))  # blocks that later stages hold in a second
        for s in reversed(range(len(counts) - 1)):
            rate = later[s + 1]
            own = max(0.0, 1 - rate * way[s + 1]) / float(facts.returned.block[:, s + 1].max())
            later[s] = rate + own
        start = back = np.zeros(len(facts.sums))
        renewal = np.zeros(len(facts.sums))
        after = np.zeros((len(facts.sums), 1))
        for s in range(len(counts)):
            room = (seconds - start - renewal)[:, None]
            alone = facts.passes.plus(facts.tail).blocks(room)[:, s]
            both = facts.returned.blocks(room - back[:, None] - after)[:, s] if s else alone
            most = np.minimum.reduce((alone, both, facts.most[:, s])).min()
            if later[s] * way[s] < 1:
                counts[s] = max(fewest[s], math.floor(most + 1e-9))
            if s == 0:
                after = facts.tail.of(counts)[:, :1]
                renewal = facts.renewal.of(counts)[:, 0]
            own = max(0.0, counts[s] / chunks - (s == 0) * (1 - 1 / chunks))
            start = start + facts.ahead.of(own)[:, s]
            back = back + facts.back.of(own)[:, s]
        return counts

    def _parted(self, facts: Facts, rows: NDArray[np.intp]) -> Floats:
        """By setting: seconds in which stages hold all blocks, if these may be divided.

        Stages hold v T - w blocks in T seconds from the first one's start. With x blocks on one
        more stage in front, way x + moved seconds less are left to them, and x <= (T - rest) / own.
        """
        chunks = self._chunks[rows]
        first = 1 - 1 / chunks  # blocks that the embedding replaces in the first chunk
        tail, renewal = facts.tail.rest[..., 0], facts.renewal.rest[..., 0]
        found = []
        for way, own, after in (
            (facts.ahead, facts.passes.plus(facts.tail), renewal),
            (facts.ahead.plus(facts.back), facts.returned, renewal + tail),
        ):
            v = w = np.zeros(facts.sums.shape[:2])
            for s in reversed(range(facts.sums.shape[-1])):
                ahead = way.block[..., s] / chunks
                moved = way.rest[..., s] - (way.block[..., s] * first if s == 0 else 0.0)
                more = np.maximum(0.0, 1 - v * ahead) / own.block[..., s]
                w = w + v * moved + more * own.rest[..., s]
                v = v + more
            found.append((self.terms.problem.model.blocks + w) / v + after)
        return np.asarray(np.maximum(*found).max(axis=0))

    @cached_property
    def _chunks(self) -> NDArray[np.int64]:
        return np.array([option.chunks for option in self.options])

    @cached_property
    def _moved(self) -> Floats:
        """By setting: a link carries one activation at a time, and all links the first and last."""
        moved = self.probes.transfers
        slowest, count = max(moved, default=0.0), max(self.probes.shape.micro_batches)
        return np.asarray(2.0 * sum(moved) + (count * self._chunks - 1.0) * slowest)

    @cached_property
    def _around(self) -> Floats:
        """By setting: seconds of transfers there and back, but those of one chunk."""
        once = 2 * (sum(self.probes.transfers) + self.probes.wrap)
        return np.asarray((self._chunks - 1) * once)

    @cached_property
    def _fewest(self) -> NDArray[np.int64]:
        """[setting, stage]: each chunk has a layer."""
        stages = len(self.probes.shape.stages)
        least = np.repeat(self._chunks[:, None], stages, axis=1)
        least[:, 0] -= 1  # the embedding
        least[:, -1] -= 1  # the head
        return np.maximum(least, 0)

    def _holds(
        self, facts: Facts, rows: NDArray[np.intp], fewest: NDArray[np.int64], seconds: Floats
    ) -> NDArray[np.bool_]:
        """By row: whether all stages may hold the model's blocks in so many seconds.

        If all stages together hold few blocks more than the model has, each stage must hold nearly
        its most. So the stages before another one have some at least.
        """
        blocks, least = self.terms.problem.model.blocks, fewest
        chunks, between_chunks = self._chunks[rows][:, None], self._around[rows][:, None]
        stages, part = fewest.shape[-1], 1 - 1 / chunks  # of the layers that go around
        first = part * (np.arange(stages) == 0)  # blocks that the embedding replaces
        within, followed = seconds[:, None], facts.passes.plus(facts.tail)
        period = followed.plus(facts.renewal).blocks(within)
        between = Line(facts.passes.block - stages * part * facts.trip, facts.passes.rest)
        for _ in range(ROUNDS):
            own = np.maximum(least / chunks - first, 0)
            start, back = _before(facts.ahead.of(own)), _before(facts.back.of(own))
            after = facts.tail.of(least)[..., :1]
            renewal = np.maximum(0.0, facts.renewal.of(least)[..., :1])
            alone = followed.blocks(within - start - renewal)
            both = facts.returned.blocks(within - start - renewal - back - after)
            both[..., 0] = alone[..., 0]
            spare = blocks - least.sum(axis=-1)
            trip = (facts.trip * least).sum(axis=-1) + spare * facts.trip.min(axis=-1)
            around = between.blocks(within - part * trip[..., None] - between_chunks)
            held = np.minimum.reduce((alone, both, period, around, facts.most))
            most = np.floor(held.min(axis=0) + 1e-9).astype(np.int64)
            unused = most.sum(axis=-1) - blocks
            enough = (unused >= 0) & (most >= least).all(axis=-1)
            more = np.where(enough[:, None], np.maximum(least, most - unused[:, None]), least)
            if (more == least).all():
                break
            least = more
        trip = trip.max(axis=0) + between_chunks[:, 0] + 2 * sum(self.probes.transfers)
        late = np.maximum(self._summed(facts, least, start), trip) + renewal.max(axis=0)[:, 0]
        return enough & (late <= seconds)

    def _summed(self, facts: Facts, least: NDArray[np.int64], start: Floats) -> Floats:
        """By setting: seconds until the NICs that stages share have carried all their sums. None
        is sent before the first of these stages begins its last backward pass."""
        ready = start + facts.passes.of(least) - facts.final.of(least)
        spare = self.terms.problem.model.blocks - least.sum(axis=-1)
        found = np.zeros(len(least))
        for stages in self.probes.joined:
            sums = facts.sums[..., stages]
            together = (sums * least[:, stages]).sum(axis=-1)
            if stages == slice(0, least.shape[-1]):
                together = together + spare * sums.min(axis=-1)
            first = ready[..., stages].min(axis=-1)
            found = np.maximum(found, (first + together).max(axis=0))
        return found


def _before(values: Floats) -> Floats:
    """[..., stage] -> the sum of the stages before."""
    return np.cumsum(values, axis=-1) - values
