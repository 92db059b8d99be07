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
    """Seconds of a stage, at least, [..., first, end] of its layers.

    busy: from its first pass to its last backward pass; infinite where the layers exceed a limit.
    alone: from its first pass to the end of the step. tail: from its last backward pass to the end
    of the step. ahead: from its first pass to the next stage's; infinite without layers. back: from
    the next stage's last backward pass to its own. warm: that a micro-batch on its trip to the last
    stage and back leaves the stage to work. spare: from its first pass to that of the first
    micro-batch that later rounds of the activations in flight lead to the last one. rounds: [...]
    -> their number; each round takes a trip. arrivals: [...] -> seconds from the first to the last
    arrival of an activation at the next stage. renewal: from the tail's end until the stage has the
    next step's weights; that step may have begun on earlier stages. steady: alone with renewal.
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


class Least(NamedTuple):
    """Least seconds of a stage and all later ones together, [..., first], by the first layer.

    finished: from the stage's first pass to the end of the step. returned: from its first pass to
    its last backward pass. trip: of one micro-batch to the last stage and back. period: from a
    stage's first pass to the same pass of the next step. Infinite where nothing fits.
    """

    finished: Floats
    returned: Floats
    trip: Floats
    period: Floats

    @property
    def step(self) -> Floats:
        """Seconds of a step that begins with the stage."""
        return np.maximum(self.finished, self.period)

    def before(self, load: Load) -> Least:
        """The same with one more stage at the front."""
        both = load.ahead + load.back
        trip = both + self.trip[..., None, :]
        through = load.busy + np.maximum(trip - load.warm, 0.0)
        np.maximum(through, load.spare + load.rounds[..., None, None] * trip, out=through)
        later = np.maximum(self.returned, load.arrivals[..., None])
        np.maximum(through, both + later[..., None, :], out=through)
        finished = np.maximum(through + load.tail, load.ahead + self.finished[..., None, :])
        np.maximum(finished, load.alone, out=finished)
        period = np.maximum(through + load.tail + load.renewal, load.steady)
        np.maximum(period, self.period[..., None, :], out=period)
        return Least(*(each.min(axis=-1) for each in (finished, through, trip, period)))


@dataclass(frozen=True)
class Chain:
    """The stages of a pipeline, first to last, and least[s] of the stages from s on."""

    loads: Sequence[Load]
    least: Sequence[Least]

    @property
    def bound(self) -> float:
        """No partition takes less; infinite if none fits."""
        return float(self.least[0].step[0])

    def partitions(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """All partitions that fit, as (bound, ends of the stages), least bound first."""
        stages, layers = len(self.loads), len(self.least[0].finished) - 1
        # Beside them: seconds until the next stage's first pass, and from its last backward pass
        # to the end of the step by the way back.
        heap: list[tuple[float, tuple[int, ...], float, float]] = [(self.bound, (), 0.0, -np.inf)]
        while heap:
            bound, ends, start, after = heapq.heappop(heap)
            if bound == np.inf:
                return
            stage, first = len(ends), ends[-1] if ends else 0
            if stage == stages:
                yield bound, ends
                continue
            load, later = self.loads[stage], self.least[stage + 1]
            ahead, back, tail = load.ahead[first], load.back[first], load.tail[first]
            trip = ahead + back + later.trip
            through = np.maximum(
                load.busy[first] + np.maximum(trip - load.warm[first], 0.0),
                load.spare[first] + load.rounds * trip,
            )
            own = through + np.maximum(tail, after)
            onward = np.maximum(tail, after) + back
            returned = np.maximum(later.returned, load.arrivals)
            further = ahead + np.maximum(later.finished, returned + onward)
            every = (own, further, load.alone[first])
            found = np.maximum(bound, start + np.maximum.reduce(every))
            if load.renewal.ndim:
                found = np.maximum(found, through + tail + load.renewal[first])
                found = np.maximum(found, later.period)
            for end in range(first + 1, layers + 1):
                if found[end] < np.inf:
                    entry = (float(found[end]), (*ends, end), start + ahead[end], onward[end])
                    heapq.heappush(heap, entry)


def sums_of(values: Sequence[float] | Floats) -> Floats:
    """[first, end] -> the sum of a value of each layer over the layers from first to end."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return np.asarray(sums[None, :] - sums[:, None])


def chain(loads: Sequence[Load]) -> Chain:
    """The tables of a pipeline, by the loads of its stages, first to last."""
    least = [after_last(loads[0].busy.shape[-1] - 1)]
    for load in reversed(loads):
        least.append(least[-1].before(load))
    return Chain(loads, least[::-1])


def after_last(layers: int) -> Least:
    """Behind the last stage no layer may be left."""
    none = np.where(np.arange(layers + 1) == layers, 0.0, np.inf)
    return Least(none, none, none, none)


@cache
def empty(layers: int) -> Floats:
    """[first, end] -> infinite for a stage without layers, else 0."""
    return np.where(np.triu(np.ones((layers + 1, layers + 1)), k=1) > 0, 0.0, np.inf)
