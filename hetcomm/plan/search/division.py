"""Partitions of consecutive layers into stages, exactly: least bottleneck first.

Each stage has its own seconds for each range of layers, and its own limits. The table of least
bottlenecks is dynamic programming over (stage, first layer); the partitions come by best-first
search (A*) with the table as its bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bottlenecks:
    """Tables of a problem.

    loads: by stage, [first, end] -> seconds of the stage with these layers, which rise with the
    layers; infinite where the stage has no layer or exceeds a limit. least: [stage, first] -> the
    least bottleneck of this stage and all later ones with the layers from first on; infinite where
    none fits.
    """

    loads: Sequence[Floats]
    least: Floats

    @property
    def bottleneck(self) -> float:
        """The seconds of the slowest stage in the best partition; infinite if none fits."""
        return float(self.least[0, 0])

    def partitions(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """All partitions that fit, as (bottleneck, ends of the stages), least bottleneck first."""
        stages, layers = len(self.loads), self.least.shape[1] - 1
        heap: list[tuple[float, tuple[int, ...]]] = [(self.bottleneck, ())]
        while heap:
            bottleneck, ends = heapq.heappop(heap)
            if bottleneck == np.inf:
                return
            stage, first = len(ends), ends[-1] if ends else 0
            if stage == stages:
                yield bottleneck, ends
                continue
            later = np.maximum(self.loads[stage][first], self.least[stage + 1])
            for end in range(first + 1, layers + 1):
                if later[end] < np.inf:
                    heapq.heappush(heap, (max(bottleneck, float(later[end])), (*ends, end)))


def sums_of(values: Sequence[float] | Floats) -> Floats:
    """[first, end] -> the sum of a value of each layer over the layers from first to end."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return np.asarray(sums[None, :] - sums[:, None])


def bottlenecks(loads: Sequence[Floats]) -> Bottlenecks:
    """The tables of a problem with one matrix of loads for each stage, first to last."""
    layers = loads[0].shape[-1] - 1
    least = [after_last(layers)]
    for each in reversed(loads):
        least.append(least_before(each, least[-1]))
    return Bottlenecks([each + _empty(layers) for each in loads], np.asarray(least[::-1]))


def after_last(layers: int) -> Floats:
    """[first] -> the bottleneck of no stages: no layer may be left."""
    return np.where(np.arange(layers + 1) == layers, 0.0, np.inf)


def least_before(loads: Floats, least: Floats) -> Floats:
    """[..., first] -> the least bottleneck of a stage with loads [..., first, end] and of those
    after it, which have `least` [..., first]."""
    found = np.maximum(loads, least[..., None, :]) + _empty(loads.shape[-1] - 1)
    return np.asarray(found.min(axis=-1))


@cache
def _empty(layers: int) -> Floats:
    """[first, end] -> infinite for a stage without layers, else 0."""
    return np.where(np.triu(np.ones((layers + 1, layers + 1)), k=1) > 0, 0.0, np.inf)
