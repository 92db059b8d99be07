"""Enumeration of shapes, in groups with a lower bound of the step time each.

Two families. "Stages": each pool serves consecutive stages, so replicas of a stage have one kind of
device and one network (Holmes, arXiv 2312.03549). "Replicas": each pool serves whole pipelines, so
activations stay inside a pool and gradients cross. A pool has one tensor degree, and all pools of
the second family have the same one: partition() sums whole weights. The context degree is that of
the whole pipeline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.search.division import Floats
from hetcomm.plan.search.filling import Pipes, Prices, StageRun
from hetcomm.plan.search.pools import Pool
from hetcomm.plan.search.shapes import Part, Shape

# The shapes' bounds are less than exact by this share.
STEP = 1.005


class ShapeGroup(NamedTuple):
    """What the shapes of one group have in common. context: the degree."""

    replicas: int
    micro_batch: int
    context: int


@dataclass(frozen=True)
class Space:
    """What the search may vary.

    layers: of the model, with embedding and head. tensors, contexts: degrees. every_rank: whether
    no rank may be idle. tied: the first stage and the last one share a parameter, so they have one
    tensor degree.
    """

    pools: Sequence[Pool]
    layers: int
    batch: int
    tensors: Sequence[int]
    contexts: Sequence[int] = (1,)
    micro_batches: Sequence[int] = (1, 2, 4, 8)
    every_rank: bool = False
    tied: bool = False

    def groups(self) -> Iterator[ShapeGroup]:
        """The groups whose replicas and micro-batch divide the batch."""
        most = sum(pool.ranks for pool in self.pools)
        for micro_batch, context in product(self.micro_batches, self.contexts):
            if self.batch % micro_batch == 0:
                for replicas in divisors(self.batch // micro_batch):
                    if replicas * context <= most:
                        yield ShapeGroup(replicas, micro_batch, context)


@dataclass(frozen=True)
class PoolStages:
    """Consecutive stages on a pool: their number, tensor degree, and blocks in a second."""

    stages: int
    tensor: int
    rate: float


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


class Window(NamedTuple):
    """Shapes whose blocks fit into seconds from `low` to less than `high`; those that take `below`
    or more are left out."""

    low: float
    high: float
    below: float


Shapes = tuple[list[tuple[float, Shape]], float]


def stage_shapes(space: Space, prices: Prices, group: ShapeGroup, window: Window) -> Shapes:
    """Shapes of the first family in a window, each with a bound, and the least of those beyond it.

    The bound of perfect balance is that of all blocks, over the sum of the rates of all stages.
    A shape's own bound is the least time in which its stages hold all blocks, whole ones, or
    parts of blocks while later stages wait for the first activation. The bound beyond is infinite
    if there are no more shapes.
    """
    replicas, micro_batch, context = group
    choices = [
        [PoolStages(0, 1, 0.0), *_pool_stages(space, prices, index, group)]
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
    further = float(bounds[bounds >= window.high].min(initial=np.inf))
    mixes = np.argwhere(bounds < window.high)
    balanced = bounds[tuple(mixes.T)]
    grid = _grid(balanced, window.high)
    shapes: list[tuple[float, Shape]] = []
    for across in (True, False):
        held, runs = [], []
        for index, each in enumerate(choices):
            table, own = np.zeros((2, len(each), len(grid)), dtype=np.int64), {}
            for number in np.unique(mixes[:, index]):
                if number > 0:
                    part = Part(index, each[number].tensor, context, replicas)
                    found = prices.rows((part,), each[number].stages, micro_batch, across)
                    table[:, number] = _held(found, grid)
                    alone = prices.alone((part,), each[number].stages, micro_batch, across)
                    moved = prices.transfer(part, each[number].stages, micro_batch, across)
                    own[number] = StageRun(part, each[number].stages, tuple(alone), moved)
            held.append(table)
            runs.append(own)
        least = np.maximum(balanced, _least(held, mixes, grid, space.layers - 2))
        further = min(further, float(least[least >= window.high].min(initial=np.inf)))
        kept = (least >= window.low) & (least < window.high)
        for mix, bound in zip(mixes[kept], least[kept], strict=True):
            taken = [runs[index][number] for index, number in enumerate(mix) if number > 0]
            if space.every_rank and not _is_whole(space, taken):
                continue
            for order in permutations(taken):
                if space.tied and order[0].part.tensor != order[-1].part.tensor:
                    continue
                pipes = Pipes(order, prices, space.layers - 2, micro_batch, space.batch)
                filled = max(float(bound), pipes.filled())
                if filled < window.below and pipes.may_take(window.below):
                    stages = tuple((each.part,) for each in order for _ in range(each.stages))
                    shape = Shape(stages, micro_batch, across)
                    if across or _two_placements(shape):
                        shapes.append((filled, shape))
    return shapes, further


def replica_shapes(space: Space, prices: Prices, group: ShapeGroup, window: Window) -> Shapes:
    """Shapes of the second family, as stage_shapes(). At least two pools have whole pipelines each.

    A faster pool serves as many of the replicas as fit. The bound of perfect balance is that in the
    slowest pipeline.
    """
    replicas, micro_batch, context = group
    work = space.batch // (replicas * micro_batch) * (space.layers - 2)
    times = [dict(_tensors(space, prices, index, group)) for index in range(len(space.pools))]
    shapes: list[tuple[float, Shape]] = []
    further = np.inf
    for tensor, chosen in product(space.tensors, product((False, True), repeat=len(times))):
        pools = [index for index, serves in enumerate(chosen) if serves]
        if not 2 <= len(pools) <= replicas or any(tensor not in times[index] for index in pools):
            continue
        used = sorted((times[index][tensor], index, tensor) for index in pools)
        slowest = used[-1][0]
        for stages in range(1, space.layers + 1):
            bound = work * slowest / stages
            parts = _shares(space, used, stages, replicas, context)
            if parts is None:
                continue
            if bound >= window.high:
                further = min(further, bound)
                continue
            grid = _grid(np.array([bound]), window.high)
            for across in (True, False):
                shape = Shape((parts,) * stages, micro_batch, across)
                if across or _two_placements(shape):
                    rows = prices.rows(parts, stages, micro_batch, across)
                    held = [_held(rows, grid)[:, None]]
                    one = np.zeros((1, 1), dtype=np.intp)
                    least = max(bound, float(_least(held, one, grid, space.layers - 2)[0]))
                    if least >= window.high:
                        further = min(further, least)
                    elif least >= window.low and least < window.below:
                        shapes.append((least, shape))
    return shapes, float(further)


def _two_placements(shape: Shape) -> bool:
    """Whether the shape's placements differ."""
    return shape.replicas > 1 and any(count > 1 for _, count in shape.runs)


def _grid(bounds: Floats, high: float) -> Floats:
    """Powers of STEP from the least bound to some more than `high`, if that is finite."""
    if not len(bounds):
        return np.empty(0)
    most = 1.3 * high if high < np.inf else 100 * float(bounds.max())
    first, last = (math.log(each) / math.log(STEP) for each in (float(bounds.min()), most))
    return np.asarray(STEP ** np.arange(math.floor(first), math.ceil(last) + 1.0))


def _held(rows: Sequence[Floats], grid: Floats) -> NDArray[np.int64]:
    """Within each of some seconds, the most blocks that stages hold together, and how many of the
    stages hold none."""
    unlike = {id(row): row for row in rows}
    times = Counter(map(id, rows))
    found = np.zeros((2, len(grid)), dtype=np.int64)
    for key, row in unlike.items():
        blocks = np.searchsorted(row, grid, "right") - 1
        found += times[key] * np.stack([blocks, blocks == 0])
    return found


def _least(
    held: Sequence[NDArray[np.int64]], mixes: NDArray[np.intp], grid: Floats, blocks: int
) -> Floats:
    """Of each mix, seconds within which its stages do not hold all blocks, or 0. held: of each
    pool, _held() by [what, choice, place in the grid]. mixes: [mix, pool] -> choice.

    Only the first stage and the last may hold no block.
    """
    low = np.zeros(len(mixes), dtype=np.int64)  # places before it do not suffice
    high = np.full(len(mixes), len(grid))  # suffices, or is the end
    while (low < high).any():
        middle = np.minimum((low + high) // 2, len(grid) - 1)
        found = np.sum([each[:, mixes[:, p], middle] for p, each in enumerate(held)], axis=0)
        enough = ((found[0] >= blocks) & (found[1] <= 2)) | (low >= high)
        low, high = np.where(enough, low, middle + 1), np.where(enough & (low < high), middle, high)
    return np.where(low > 0, grid[np.maximum(low, 1) - 1], 0.0) if len(mixes) else np.empty(0)


def _tensors(
    space: Space, prices: Prices, index: int, group: ShapeGroup
) -> Iterator[tuple[int, float]]:
    """Each tensor degree of the pool, with the seconds of a block."""
    for tensor in space.tensors:
        if tensor * group.context <= space.pools[index].widest:
            each = prices.block_seconds(index, tensor, group.context, group.micro_batch)
            if each is not None:
                yield tensor, each


def _pool_stages(
    space: Space, prices: Prices, index: int, group: ShapeGroup
) -> Iterator[PoolStages]:
    for tensor, each in _tensors(space, prices, index, group):
        most = space.pools[index].capacity(tensor * group.context) // group.replicas
        for stages in range(1, min(most, space.layers) + 1):
            yield PoolStages(stages, tensor, stages / each)


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


def _is_whole(space: Space, taken: Sequence[StageRun]) -> bool:
    """Whether the stages occupy every rank."""
    ranks = sum(each.stages * each.part.count * each.part.width for each in taken)
    return ranks == sum(pool.ranks for pool in space.pools)
