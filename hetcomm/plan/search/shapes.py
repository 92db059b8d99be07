"""The shapes of a search: which ranks serve which stages, before layers are divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from hetcomm.plan.layout import Replica
from hetcomm.plan.search.pools import Pool


@dataclass(frozen=True)
class Part:
    """Equal replicas of a stage on one pool. pool: its index. count: of the replicas."""

    pool: int
    tensor: int
    context: int
    count: int

    @property
    def width(self) -> int:
        """The ranks of a replica."""
        return self.tensor * self.context


@dataclass(frozen=True)
class Shape:
    """The parts of each stage, and the work of their replicas.

    micro_batch: samples of a pass. micro_batches: of a replica in a step, by part of a stage, at
    most. shares: of each replica, as in Layout; none: equally many. across: a pool gives
    consecutive slots to the replicas of one stage, as Holmes does (arXiv 2312.03549), so that
    gradients stay among few hosts. Otherwise it gives them to the stages of one replica, so that
    activations do.
    """

    stages: tuple[tuple[Part, ...], ...]
    micro_batch: int
    micro_batches: tuple[int, ...]
    across: bool = True
    shares: tuple[int, ...] = ()

    @property
    def replicas(self) -> int:
        """The data-parallel degree."""
        return sum(part.count for part in self.stages[0])

    @cached_property
    def ranks(self) -> int:
        """The ranks of all stages."""
        return sum(part.count * part.width for stage in self.stages for part in stage)

    @cached_property
    def runs(self) -> tuple[tuple[tuple[Part, ...], int], ...]:
        """The stages as (parts, number of consecutive stages with these parts)."""
        found: list[tuple[tuple[Part, ...], int]] = []
        for stage in self.stages:
            if found and found[-1][0] == stage:
                found[-1] = (stage, found[-1][1] + 1)
            else:
                found.append((stage, 1))
        return tuple(found)

    def place(self, pools: Sequence[Pool]) -> list[tuple[Replica, ...]]:
        """The replicas of each stage, on ranks of the pools. Each rank has one place at most.

        A pool serves one run of stages.
        """
        return [
            stage for parts, count in self.runs for stage in place(pools, parts, count, self.across)
        ]


def place(
    pools: Sequence[Pool], parts: tuple[Part, ...], count: int, across: bool
) -> list[tuple[Replica, ...]]:
    """The replicas of each of a run's stages; see Shape."""
    stages: list[list[Replica]] = [[] for _ in range(count)]
    for part in parts:
        slots = pools[part.pool].slots(part.width)
        for s, r in product(range(count), range(part.count)):
            slot = s * part.count + r if across else r * count + s
            stages[s].append(Replica(slots[slot], part.context))
    return [tuple(stage) for stage in stages]


def spans_of(counts: Sequence[int], chunks: int) -> list[list[tuple[int, int]]]:
    """The layers of each stage's chunks, as (first, end). counts: layers of the stages.

    The chunks of a stage differ by one layer at most; earlier ones have more.
    """
    spans: list[list[tuple[int, int]]] = [[] for _ in counts]
    first = 0
    for chunk in range(chunks):
        for own, count in zip(spans, counts, strict=True):
            end = first + count // chunks + (chunk < count % chunks)
            own.append((first, end))
            first = end
    return spans
