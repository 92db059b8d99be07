"""Partitions of consecutive layers into stages, exactly: least bound of the step first.

Each stage has its own seconds for each range of layers, and its own limits. The tables of least
bounds are dynamic programming over (stage, first layer); the partitions come by best-first search
(A*) with the tables as its bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Seconds beyond those of any step.
NEVER = float(np.finfo(np.float64).max)


class Load(NamedTuple):
    """Seconds of a stage, at least, [..., first, end] of its layers in its window().

    busy: from its first pass to its last backward pass; infinite where the layers exceed a limit.
    alone: from its first pass to the end of the step. tail: from its last backward pass to the end
    of the step. ahead: from its first pass to the next stage's; infinite without layers. back: from
    the next stage's last backward pass to its own. warm: that a micro-batch on its trip to the last
    stage and back leaves the stage to work. spare: from its first pass to that of the first
    micro-batch that later rounds of the activations in flight lead to the last one. rounds: [...]
    -> their number; each round takes a trip. arrivals: [...] -> seconds from the first to the last
    arrival of an activation at the next stage. renewal: from the tail's end until the stage has the
    next step's weights; that step may have begun on earlier stages. steady: alone with renewal.
    sums: None unless stages share the NICs of hosts. clips: None unless the renewals of all stages
    begin together. chunks: None without.
    """

    busy: Floats
    alone: Floats
    tail: Floats
    ahead: Floats
    back: Floats
    warm: Floats
    spare: Floats
    rounds: Floats
    arrivals: Floats
    renewal: Floats = np.zeros(())
    steady: Floats = np.zeros(())
    sums: SumLoad | None = None
    clips: ClipLoad | None = None
    chunks: ChunkLoad | None = None


class SumLoad(NamedTuple):
    """Seconds in which a stage keeps the NICs of its hosts busy, at least.

    own: with sums that are there after its last backward pass. later: the same after the next
    stage's last backward pass. left: with sums that are there after all its passes. deferred: from
    its last backward pass to all. updates: with new weights; at most `hidden` of them before its
    first forward pass is over, but for its last layer. joined: whether the next stage keeps the
    same NICs busy.
    """

    own: Floats
    later: Floats
    left: Floats
    deferred: Floats
    updates: Floats
    hidden: Floats
    joined: bool


class ClipLoad(NamedTuple):
    """Seconds of a stage where the gradients' norm joins all stages, before the renewals.

    latest: from its first pass to the next stage's at most; None if that is unknown. first: whether
    it is the first stage.
    """

    latest: Floats | None
    first: bool


class ChunkLoad(NamedTuple):
    """Seconds of a stage with several chunks, at least; see bound.py.

    all: of a micro-batch, all chunks forward and backward with their transfers. around: of these,
    that of the times an activation or a gradient goes around all stages. own: the stage's passes
    between. edges: of its passes before and after its turns to the last stage. turns: of all turns
    over these stages. share: [...] -> of one of so many paths. grouped: of gradients that go around
    in each group.
    """

    all: Floats
    around: Floats
    own: Floats
    edges: Floats
    turns: Floats
    share: Floats
    grouped: Floats


class Least(NamedTuple):
    """Least seconds of a stage and all later ones together, [..., first], by the first layer.

    finished: from the stage's first pass to the end of the step. returned: from its first pass to
    its last backward pass. trip: of one micro-batch to the last stage and back. period: from a
    stage's first pass to the same pass of the next step. Infinite where nothing fits.

    summed: from the stage's first pass until its hosts' NICs are free. ready: the same, if stages
    that share NICs have their sums at once. left, updates: of all stages that share the NICs.
    late: from the norm until a stage goes on, less the time until its first pass. soon: less what
    hides these stages' new weights, at most.

    around, turns, grouped, chunked: of all stages' ChunkLoad; chunked also from the stage's first
    pass to its last backward pass.
    """

    finished: Floats
    returned: Floats
    trip: Floats
    period: Floats
    summed: Floats
    ready: Floats
    left: Floats
    late: Floats
    updates: Floats
    soon: Floats
    around: Floats
    turns: Floats
    grouped: Floats
    chunked: Floats

    @property
    def step(self) -> Floats:
        """Seconds of a step that begins with the stage."""
        return np.maximum(self.finished, self.period)

    def every(self, load: Load, below: float = np.inf) -> Least:
        """[..., first, end] -> the same with one more stage at the front, which has these layers;
        infinite where a step takes no less than `below`."""
        later = Least(*(each[..., None, :] if each.ndim else each for each in self))
        both = load.ahead + load.back
        trip = both + later.trip
        through = load.busy + np.maximum(trip - load.warm, 0.0)
        np.maximum(through, load.spare + load.rounds[..., None, None] * trip, out=through)
        arrived = np.maximum(self.returned, load.arrivals[..., None])
        np.maximum(through, both + arrived[..., None, :], out=through)
        around = turns = grouped = chunked = NONE
        if (own := load.chunks) is not None:
            around, turns = own.around + later.around, own.turns + later.turns
            grouped = own.grouped + later.grouped
            chunked = np.maximum(own.all + later.chunked, own.own + around)
            turned = own.edges + around + own.share[..., None, None] * turns
            chunked = np.maximum.reduce((chunked, turned, grouped))
            np.maximum(through, chunked, out=through)
        finished = np.maximum(through + load.tail, load.ahead + later.finished)
        np.maximum(finished, load.alone, out=finished)
        summed = ready = left = updates = soon = NONE
        if (sums := load.sums) is not None:
            summed, left, updates = through + sums.own, sums.left, sums.updates
            ready, soon = through + sums.deferred + sums.left, -sums.hidden
            if sums.joined:
                summed = np.maximum(summed, load.ahead + later.summed + sums.later)
                ready = np.minimum(ready + later.left, load.ahead + later.ready + sums.left)
                left, updates = left + later.left, updates + later.updates
                if load.clips is not None and load.clips.latest is not None:
                    soon = np.minimum(soon, later.soon - load.clips.latest)
            np.maximum(finished, np.maximum(summed, ready), out=finished)
        period = np.maximum(through + load.tail + load.renewal, load.steady)
        np.maximum(period, later.period, out=period)
        late = NONE
        if (clips := load.clips) is not None:
            late = load.renewal
            if clips.latest is not None:
                late = np.maximum(late, later.late - clips.latest)
                if sums is not None:
                    late = np.maximum(late, updates + soon)
            if clips.first:
                finished += late
        found = Least(
            finished, through, trip, period, summed, ready, left, late, updates, soon, around,
            turns, grouped, chunked,
        )  # fmt: skip
        if below == np.inf:
            return found
        slow = np.where(np.maximum(finished, period) < below, 0.0, np.inf)
        return Least(*(each + slow if each.ndim else each for each in found))

    def before(self, load: Load, below: float = np.inf) -> Least:
        """The same with one more stage at the front, if a step takes less than `below`."""
        return self.every(load, below).least

    @property
    def least(self) -> Least:
        """Of every(), the least of each first layer."""
        return Least(*(each.min(axis=-1) if each.ndim else each for each in self))


NONE = np.zeros(())


class Begun(NamedTuple):
    """What the first stages of a pipeline leave to the later ones, in seconds.

    start, latest: until the next stage's first pass, at least and at most. after: from that stage's
    last backward pass to the end of the step, by the way back. tail: of the first stage. sums,
    left, deferred, updates, soon: of the stages that share its NICs; see SumLoad and Least. late:
    of all stages.
    all: of ChunkLoad. around: the longest own path with the ways around. turned, grouped: from the
    first stage on. share: of the first stage.
    """

    start: float = 0.0
    latest: float = 0.0
    after: float = 0.0
    tail: float = 0.0
    sums: float = 0.0
    left: float = 0.0
    deferred: float = np.inf
    updates: float = 0.0
    soon: float = np.inf
    late: float = 0.0
    all: float = 0.0
    around: float = -np.inf
    turned: float = -np.inf
    grouped: float = -np.inf
    share: float = 0.0


@dataclass(frozen=True)
class Chain:
    """The tables of a pipeline: of the stages from s on, loads[s], every[s] and least[s]. No step
    that takes `below` or more counts."""

    loads: Sequence[Load]
    every: Sequence[Least]
    least: Sequence[Least]
    below: float = np.inf

    @property
    def bound(self) -> float:
        """No partition takes less; infinite if none fits."""
        return float(self.least[0].step[0])

    def partitions(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """All partitions that fit, as (bound, ends of the stages), least bound first."""
        stages, width = len(self.loads), len(self.least[0].finished)
        heap: list[tuple[float, tuple[int, ...], Begun]] = [(self.bound, (), Begun())]
        while heap:
            bound, ends, begun = heapq.heappop(heap)
            if bound >= self.below:
                return
            stage, first = len(ends), ends[-1] if ends else 0
            if stage == stages:
                yield bound, ends
                continue
            found = np.maximum(bound, self._bounds(stage, first - stage, begun))
            for place in range(first - stage, width):
                if found[place] < self.below:
                    following = self._begun(stage, first - stage, place, begun)
                    entry = (float(found[place]), (*ends, stage + 1 + place), following)
                    heapq.heappush(heap, entry)

    def _bounds(self, stage: int, first: int, begun: Begun) -> Floats:
        """[end] -> of all steps with these layers on the stage. first: its place in the tables."""
        load, later = self.loads[stage], self.least[stage + 1]
        own = Least(*(each[first] if each.ndim else each for each in self.every[stage]))
        tail, back = load.tail[first], load.back[first]
        onward = np.maximum(tail, begun.after) + back
        returned = np.maximum(later.returned, load.arrivals)
        found = np.maximum(own.returned + begun.after, load.ahead[first] + returned + onward)
        found = begun.start + np.maximum(found, own.finished)
        if stage == 0:
            return np.maximum(found, own.period)
        joined = (before := self.loads[stage - 1].sums) is not None and before.joined
        if joined:
            np.maximum(found, begun.start + own.summed + begun.sums, out=found)
            # A stage's last backward pass follows the next one's.
            ready = np.minimum(own.ready, own.returned + begun.deferred + own.left)
            np.maximum(found, begun.start + begun.left + ready, out=found)
        if load.chunks is not None:
            every = (
                begun.all + own.chunked,
                begun.around + own.around,
                begun.turned + own.around + begun.share * own.turns,
                begun.grouped + own.grouped,
            )
            np.maximum(found, begun.tail + np.maximum.reduce(every), out=found)
        late = np.asarray(begun.late)
        if load.clips is not None and load.clips.latest is not None:
            late = np.maximum(late, own.late - begun.latest)
            if joined:
                soon = np.minimum(begun.soon, own.soon - begun.latest)
                late = np.maximum(late, begun.updates + own.updates + soon)
        return np.maximum(found + late, own.period)

    def _begun(self, stage: int, first: int, end: int, begun: Begun) -> Begun:
        """With the stage."""
        load = self.loads[stage]

        def of(values: Floats) -> float:
            return float(values[first, end] if values.ndim else values)

        ahead, tail = of(load.ahead), of(load.tail)
        found = begun._replace(
            start=begun.start + ahead,
            after=max(tail, begun.after) + of(load.back),
            tail=begun.tail if stage else tail,
            sums=0.0,
            left=0.0,
            deferred=np.inf,
            updates=0.0,
            soon=np.inf,
        )
        if (sums := load.sums) is not None and sums.joined:
            found = found._replace(
                sums=begun.sums + of(sums.later),
                left=begun.left + of(sums.left),
                deferred=min(begun.deferred, of(sums.deferred)),
                updates=begun.updates + of(sums.updates),
                soon=min(begun.soon, -of(sums.hidden) - begun.latest),
            )
        if (clips := load.clips) is not None:
            if clips.latest is not None:
                late = max(begun.late, of(load.renewal) - begun.latest)
                found = found._replace(latest=begun.latest + of(clips.latest), late=late)
            elif stage == 0:
                found = found._replace(late=of(load.renewal))
        if (chunks := load.chunks) is not None:
            around, turns, grouped = (
                of(each) for each in (chunks.around, chunks.turns, chunks.grouped)
            )
            share = begun.share if stage else float(chunks.share)
            before = (begun.turned, begun.grouped) if stage else (of(chunks.edges), 0.0)
            found = found._replace(
                all=begun.all + of(chunks.all),
                around=max(begun.around, begun.all + of(chunks.own)) + around,
                turned=before[0] + around + share * turns,
                grouped=before[1] + grouped,
                share=share,
            )
        return found


def exclusive_cumsum(values: Floats) -> Floats:
    """[s] -> the sum of the values before s."""
    return np.concatenate(([0.0], np.cumsum(values)[:-1]))


def sums_of(values: Sequence[float] | Floats) -> Floats:
    """[first, end] -> the sum of a value of each layer over the layers from first to end."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return np.asarray(sums[None, :] - sums[:, None])


def chain(loads: Sequence[Load], below: float = np.inf) -> Chain:
    """The tables of a pipeline, by the loads of its stages, first to last."""
    every: list[Least] = []
    least = [after_last(loads[0].busy.shape[-1])]
    for load in reversed(loads):
        every.append(least[-1].every(load, below))
        least.append(every[-1].least)
    return Chain(loads, every[::-1], least[::-1], below)


def after_last(width: int) -> Least:
    """Behind the last stage no layer may be left. width: of the tables."""
    none = np.where(np.arange(width) == width - 1, 0.0, np.inf)
    return Least(*(none for _ in Least._fields))


@cache
def empty(width: int) -> Floats:
    """[first, end] -> infinite for a stage without layers, else 0."""
    return np.where(np.triu(np.ones((width, width))) > 0, 0.0, np.inf)


def window(layers: int, stages: int, stage: int) -> tuple[slice, slice]:
    """The first layers and the ends that a stage may have, if each stage has a layer.

    Tables of [first, end] hold these alone. So the ends of a stage have the places of the next
    one's first layers.
    """
    width = layers - stages + 1
    return slice(stage, stage + width), slice(stage + 1, stage + 1 + width)
