"""Enumeration of shapes, in groups with a lower bound of the step time each.

Two families. "Stages": each pool serves consecutive stages, so replicas of a stage have one kind of
device and one network (Holmes, arXiv 2312.03549). "Replicas": each pool serves whole pipelines, so
activations stay inside a pool and gradients cross. A pool has one tensor degree. The context degree
is that of the whole pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from hetcomm.plan.search.pools import Pool
from hetcomm.plan.search.shapes import Part, Shape

# (index of the pool, tensor degree, context degree, micro-batch) -> the least seconds in which a
# replica computes one block forward and backward; None where the degrees are impossible.
BlockSeconds = Callable[[int, int, int, int], float | None]


@dataclass(frozen=True)
class Space:
    """What the search may vary.

    layers: of the model, with embedding and head. tensors, contexts: degrees. every_rank: whether
    no rank may be idle.
    """

    pools: Sequence[Pool]
    layers: int
    batch: int
    tensors: Sequence[int]
    contexts: Sequence[int] = (1,)
    micro_batches: Sequence[int] = (1, 2, 4, 8)
    every_rank: bool = False

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Each (replicas, micro-batch, context degree) that divides the batch."""
        most = sum(pool.ranks for pool in self.pools)
        for micro_batch, context in product(self.micro_batches, self.contexts):
            if self.batch % micro_batch == 0:
                for replicas in divisors(self.batch // micro_batch):
                    if replicas * context <= most:
                        yield replicas, micro_batch, context


@dataclass(frozen=True)
class Choice:
    """Consecutive stages on a pool: their number, tensor degree, and blocks in a second."""

    stages: int
    tensor: int
    rate: float


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def stage_shapes(
    space: Space, seconds: BlockSeconds, group: tuple[int, int, int], low: float, below: float
) -> tuple[list[tuple[float, Shape]], float]:
    """Shapes of the first family with a bound from `low` to less than `below`, and the next bound.

    The bound is that of perfect balance: all blocks, over the sum of the rates of all stages. The
    next bound is the least one of the other shapes from `below` on; infinite if there are none.
    """
    replicas, micro_batch, context = group
    choices = [
        [Choice(0, 1, 0.0), *_choices(space, seconds, index, group)]
        for index in range(len(space.pools))
    ]
    work = space.batch // (replicas * micro_batch) * (space.layers - 2)
    rates, counts = np.zeros(()), np.zeros((), dtype=np.int64)
    for each in choices:
        rates = np.add.outer(rates, [choice.rate for choice in each])
        counts = np.add.outer(counts, [choice.stages for choice in each])
    fits = (counts > 0) & (counts <= space.layers)
    bounds = np.full(rates.shape, np.inf)
    np.divide(work, rates, out=bounds, where=fits)
    shapes: list[tuple[float, Shape]] = []
    for place in np.argwhere((bounds >= low) & (bounds < below)):
        taken = [
            (index, choices[index][number]) for index, number in enumerate(place) if number > 0
        ]
        if space.every_rank and not _is_whole(space, taken, replicas, context):
            continue
        for order in permutations(taken):
            stages = tuple(
                (Part(index, choice.tensor, context, replicas),)
                for index, choice in order
                for _ in range(choice.stages)
            )
            shapes += _placed(float(bounds[tuple(place)]), stages, micro_batch)
    return shapes, float(bounds[bounds >= below].min(initial=np.inf))


def replica_shapes(
    space: Space, seconds: BlockSeconds, group: tuple[int, int, int], low: float, below: float
) -> tuple[list[tuple[float, Shape]], float]:
    """Shapes of the second family, as stage_shapes(). At least two pools have whole pipelines each.

    A faster pool serves as many of the replicas as fit. The bound is that of perfect balance in the
    slowest pipeline.
    """
    replicas, micro_batch, context = group
    work = space.batch // (replicas * micro_batch) * (space.layers - 2)
    # None: the pool serves nothing.
    rows: list[list[tuple[int, float] | None]] = [
        [None, *_tensors(space, seconds, index, group)] for index in range(len(space.pools))
    ]
    shapes: list[tuple[float, Shape]] = []
    further = np.inf
    for row in product(*rows):
        used = [(each[1], index, each[0]) for index, each in enumerate(row) if each is not None]
        if not 2 <= len(used) <= replicas:
            continue
        slowest, widest = max(used)[0], max(tensor for *_, tensor in used)
        if any(widest % tensor for *_, tensor in used):
            continue
        for stages in range(1, space.layers + 1):
            bound = work * slowest / stages
            if bound < low:
                break
            parts = _shares(space, sorted(used), stages, replicas, context)
            if parts is None:
                continue
            if bound < below:
                shapes += _placed(bound, (parts,) * stages, micro_batch)
            else:
                further = min(further, bound)
    return shapes, float(further)


def _placed(
    bound: float, stages: tuple[tuple[Part, ...], ...], micro_batch: int
) -> Iterator[tuple[float, Shape]]:
    """Both placements, if they differ."""
    yield bound, Shape(stages, micro_batch)
    shape = Shape(stages, micro_batch, across=False)
    if shape.replicas > 1 and any(count > 1 for _, count in shape.runs):
        yield bound, shape


def _tensors(
    space: Space, seconds: BlockSeconds, index: int, group: tuple[int, int, int]
) -> Iterator[tuple[int, float]]:
    """Each tensor degree of the pool, with the seconds of a block."""
    _, micro_batch, context = group
    for tensor in space.tensors:
        if tensor * context <= space.pools[index].widest:
            each = seconds(index, tensor, context, micro_batch)
            if each is not None:
                yield tensor, each


def _choices(
    space: Space, seconds: BlockSeconds, index: int, group: tuple[int, int, int]
) -> Iterator[Choice]:
    replicas, _, context = group
    for tensor, each in _tensors(space, seconds, index, group):
        most = space.pools[index].capacity(tensor * context) // replicas
        for stages in range(1, min(most, space.layers) + 1):
            yield Choice(stages, tensor, stages / each)


def _shares(
    space: Space,
    used: Sequence[tuple[float, int, int]],
    stages: int,
    replicas: int,
    context: int,
) -> tuple[Part, ...] | None:
    """The replicas of each pool, fastest first; at least one each. None if they do not fit."""
    parts, left = [], replicas
    for place, (_, index, tensor) in enumerate(used):
        later = len(used) - place - 1
        pool = space.pools[index]
        count = min(pool.capacity(tensor * context) // stages, left - later)
        idle = pool.ranks - count * stages * tensor * context
        if count < 1 or (space.every_rank and idle):
            return None
        parts.append(Part(index, tensor, context, count))
        left -= count
    if left or (space.every_rank and len(used) < len(space.pools)):
        return None
    return tuple(parts)


def _is_whole(
    space: Space, taken: Sequence[tuple[int, Choice]], replicas: int, context: int
) -> bool:
    """Whether the stages occupy every rank."""
    ranks = sum(choice.stages * choice.tensor for _, choice in taken) * replicas * context
    return ranks == sum(pool.ranks for pool in space.pools)
