"""Shapes in which each pool serves whole pipelines, so that gradients alone cross between pools.

A faster pool serves more of the replicas, or its replicas take more micro-batches. All pools have
the same tensor degree and number of stages: partition() sums whole weights.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.space import Floats, Space, divisors, filled, is_whole, parts_of, placed
from hetcomm.plan.search.terms import Terms


class ReplicaGroup(NamedTuple):
    """parts: of each pool, fastest first, for any number of replicas. seconds: of a block forward
    and backward. bound: if all were busy."""

    bound: float
    parts: tuple[Part, ...]
    seconds: tuple[tuple[float, float], ...]
    micro_batch: int

    def shapes(self, terms: Terms, space: Space, below: float) -> Iterator[tuple[float, Shape]]:
        """Those that may take less than `below`, least bound first."""
        found = []
        for stages in range(1, space.layers + 1):
            for counts, shares in _counts(terms, space, self, stages, below):
                line = tuple(
                    replace(part, count=count)
                    for part, count in zip(self.parts, counts, strict=True)
                )
                if space.every_rank and not is_whole(terms, [(part, stages) for part in line]):
                    continue
                together = space.batch // self.micro_batch
                most = (together // sum(counts),) * len(counts)
                if shares:
                    ends = np.cumsum(counts)
                    most = tuple(
                        max(shares[end - n : end]) for n, end in zip(counts, ends, strict=True)
                    )
                bound = max(
                    float(filled(space, each, [np.array([[stages], [f], [b]])])[0])
                    for (f, b), each in zip(self.seconds, most, strict=True)
                )
                if bound < below:
                    for shape in placed((line,) * stages, self.micro_batch, most, shares):
                        found.append((bound, shape))
        return iter(sorted(found, key=lambda each: each[0]))


def replica_groups(terms: Terms, space: Space) -> Iterator[ReplicaGroup]:
    """The groups of at least two pools."""
    for micro_batch, context in product(space.micro_batches, space.contexts):
        together, rest = divmod(space.batch, micro_batch)
        if rest:
            continue
        every: dict[int, list[tuple[Part, tuple[float, float]]]] = {}
        for pool in space.pools:
            for part, seconds in parts_of(terms, space, pool, micro_batch, context, 1):
                every.setdefault(part.tensor, []).append((part, seconds))
        for able in every.values():
            for number in range(2, len(able) + 1):
                for chosen in combinations(able, number):
                    used = sorted(chosen, key=lambda each: sum(each[1]))
                    rates = (
                        terms.problem.pools[part.pool].capacity(part.width) / sum(seconds)
                        for part, seconds in used
                    )
                    bound = together * space.blocks / sum(rates)
                    parts = tuple(part for part, _ in used)
                    seconds_of = tuple(seconds for _, seconds in used)
                    yield ReplicaGroup(bound, parts, seconds_of, micro_batch)


def _counts(
    terms: Terms, space: Space, group: ReplicaGroup, stages: int, below: float
) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """The replicas of each pool, and unequal shares of the batch, or none.

    Of equal shares a faster pool serves as many replicas as fit.
    """
    pools = terms.problem.pools
    most = [pools[part.pool].capacity(part.width) // stages for part in group.parts]
    if min(most) == 0:
        return
    together = space.batch // group.micro_batch
    blocks = np.array([sum(each) for each in group.seconds])
    for replicas in divisors(together):
        left, counts = replicas, []
        for place, each in enumerate(most):
            counts.append(min(each, left - (len(most) - place - 1)))
            left -= counts[-1]
        step = together // replicas * blocks[-1] * space.blocks / stages
        if not left and min(counts) > 0 and step < below:
            yield counts, ()
    step = together * space.blocks / stages / float((np.array(most) / blocks).sum())
    if sum(most) <= together and step < below:
        shares = _divided(together, np.repeat(blocks, most), stages)
        if len(set(shares)) > 1:
            yield most, shares


def _divided(together: int, each: Floats, stages: int) -> tuple[int, ...]:
    """Micro-batches of each replica, one at least, so that the last one ends early."""
    within = (together + stages * len(each)) / (1 / each).sum()
    shares = np.maximum(1, np.floor(within / each - stages)).astype(int)
    while (excess := int(shares.sum()) - together) > 0:  # the slowest replicas had none
        latest = np.argsort(-(shares + stages) * each * (shares > 1), kind="stable")[:excess]
        shares[latest] -= shares[latest] > 1
    heap = [((shares[r] + 1 + stages) * each[r], r) for r in range(len(each))]
    heapq.heapify(heap)
    for _ in range(together - int(shares.sum())):
        r = heap[0][1]
        shares[r] += 1
        heapq.heapreplace(heap, ((shares[r] + 1 + stages) * each[r], r))
    return tuple(shares.tolist())
