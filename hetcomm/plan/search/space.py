"""The shapes of a search, in groups, each with a bound of the step from its passes alone.

Two families. "Stages", in this module: each pool serves consecutive stages, so replicas of a stage
have one kind of device and one network (Holmes, arXiv 2312.03549). "Replicas" (replicas.py): each
pool serves whole pipelines. The context degree is that of the whole pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.terms import Terms

STEPS = 16  # of a bisection
SHORTEST, LONGEST = 1e-12, 1e9  # seconds of a step

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Space:
    """What the search may vary.

    pools: those that may serve, by their index. layers: of the model, with embedding and head.
    tensors, contexts: degrees. every_rank: whether no rank may be idle. tied: the first stage and
    the last one share a parameter, so they have one tensor degree. chunks: the most of a stage.
    halves: whether a schedule may compute weights' gradients later. levels, codecs: of gradients.
    full: whether a pool that serves gives as many stages as it has ranks for.
    """

    pools: tuple[int, ...]
    layers: int
    batch: int
    tensors: Sequence[int]
    contexts: Sequence[int] = (1,)
    micro_batches: Sequence[int] = (1, 2, 4, 8)
    every_rank: bool = False
    tied: bool = False
    chunks: int = 1
    halves: bool = False
    levels: Sequence[str] = ("rank",)
    codecs: Sequence[str] = ("auto",)
    full: bool = False

    @property
    def blocks(self) -> int:
        return self.layers - 2


class StageGroup(NamedTuple):
    """Shapes of the first family. pools: in the order of stages. bound: if all were busy."""

    bound: float
    pools: tuple[int, ...]
    replicas: int
    micro_batch: int
    context: int

    def shapes(self, terms: Terms, space: Space, below: float) -> Iterator[tuple[float, Shape]]:
        """Those that may take less than `below`, least bound first."""
        return stage_shapes(terms, space, self, below)


class Choice(NamedTuple):
    """Stages on a pool. forward, backward: seconds of a block."""

    part: Part
    stages: int
    forward: float
    backward: float


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def stage_groups(terms: Terms, space: Space) -> Iterator[StageGroup]:
    """The groups of the first family."""
    for micro_batch, context in product(space.micro_batches, space.contexts):
        together, rest = divmod(space.batch, micro_batch)
        for replicas in () if rest else divisors(together):
            rates = {}
            for pool in space.pools:
                every = _choices(terms, space, pool, replicas, micro_batch, context)
                if every:
                    rates[pool] = max(c.stages / (c.forward + c.backward) for c in every)
            work = together // replicas * space.blocks
            for count in range(1, len(rates) + 1):
                for pools in permutations(rates, count):
                    if not space.every_rank or count == len(terms.problem.pools):
                        bound = work / sum(rates[pool] for pool in pools)
                        yield StageGroup(bound, pools, replicas, micro_batch, context)


def stage_shapes(
    terms: Terms, space: Space, group: StageGroup, below: float
) -> Iterator[tuple[float, Shape]]:
    """See StageGroup.shapes()."""
    choices = [
        _choices(terms, space, pool, group.replicas, group.micro_batch, group.context)
        for pool in group.pools
    ]
    count = space.batch // (group.replicas * group.micro_batch)
    # By mix of choices: blocks in a second, stages, and the number of each choice.
    rates, stages = np.zeros(1), np.zeros(1, dtype=np.int64)
    mixes = np.zeros((1, 0), dtype=np.int64)
    rates_of = [np.array([c.stages / (c.forward + c.backward) for c in each]) for each in choices]
    for place, every in enumerate(choices):
        rates = np.add.outer(rates, rates_of[place]).ravel()
        stages = np.add.outer(stages, [c.stages for c in every]).ravel()
        later = sum(each.max() for each in rates_of[place + 1 :])
        kept = np.flatnonzero(
            (stages <= space.layers) & (count * space.blocks < below * (rates + later))
        )
        before, number = np.divmod(kept, len(every))
        rates, stages = rates[kept], stages[kept]
        mixes = np.hstack((mixes[before], number[:, None]))
    balanced = count * space.blocks / rates
    mixes, balanced = mixes[balanced < below], balanced[balanced < below]
    tables = []
    for i, every in enumerate(choices):
        table = np.zeros((len(every), 5))
        for number in np.unique(mixes[:, i]):
            choice = every[number]
            sums = _after(terms, space, choice, group.micro_batch, count)
            table[number] = (choice.stages, choice.forward, choice.backward, *sums)
        tables.append(table[mixes[:, i]].T)
    low = np.maximum(balanced, filled(space, count, tables))
    bounds = _whole_blocks(space, count, tables, low, below)
    for place in np.argsort(bounds, kind="stable"):
        if bounds[place] >= below:
            return
        runs = [every[i] for every, i in zip(choices, mixes[place], strict=True)]
        if space.tied and runs[0].part.tensor != runs[-1].part.tensor:
            continue
        if space.every_rank and not is_whole(terms, [(c.part, c.stages) for c in runs]):
            continue
        parts = tuple((c.part,) for c in runs for _ in range(c.stages))
        for shape in placed(parts, group.micro_batch, (count,)):
            yield float(bounds[place]), shape


def _after(
    terms: Terms, space: Space, choice: Choice, micro_batch: int, count: int
) -> tuple[float, float]:
    """Seconds of a block's sums that no backward pass hides, at least; and what one block hides of
    all sums of its stage, at most."""

    def compute() -> tuple[float, float]:
        if not terms.problem.runtime.partitions:
            return 0.0, 0.0
        after, hidden = [], []
        for shape in placed(((choice.part,),) * choice.stages, micro_batch, (count,)):
            probes = Probes(terms, shape)
            stages = {key: s for s, key in enumerate(probes.keys)}
            for s, level, codec in product(stages.values(), space.levels, space.codecs):
                sums = probes.sums(s, "rank", level, codec)
                hidden.append(max(0.0, sums.beside - choice.backward))
                after.append(sums.left + hidden[-1] / space.chunks)
        return min(after), max(hidden)

    return terms.once(("after", choice, micro_batch), compute)


def _choices(
    terms: Terms, space: Space, pool: int, replicas: int, micro_batch: int, context: int
) -> list[Choice]:
    """The stages that a pool may serve with so many replicas."""

    def compute() -> list[Choice]:
        found = []
        for part, seconds in parts_of(terms, space, pool, micro_batch, context, replicas):
            most = min(terms.problem.pools[pool].capacity(part.width) // replicas, space.layers)
            least = max(1, most) if space.full else 1
            found += [Choice(part, stages, *seconds) for stages in range(least, most + 1)]
        return found

    key = ("choices", space.layers, space.full, pool, replicas, micro_batch, context)
    return terms.once(key, compute)


def parts_of(
    terms: Terms, space: Space, pool: int, micro_batch: int, context: int, replicas: int
) -> Iterator[tuple[Part, tuple[float, float]]]:
    """Of each tensor degree, with the seconds of a block forward and backward."""
    for tensor in space.tensors:
        part = Part(pool, tensor, context, replicas)
        possible = part.width <= terms.problem.pools[pool].widest
        if possible and terms.block_seconds(pool, tensor, context, micro_batch) is not None:
            times = terms.times(part, micro_batch, "block")
            yield part, (times.forward, times.backward)


def filled(space: Space, count: int, runs: Sequence[Floats]) -> Floats:
    """Seconds in which stages hold all blocks, if blocks may be divided, by shape.

    runs: of each, [stages, forward, backward, ...] by shape. count: of micro-batches. The
    less a stage leaves on the ways in and back, the sooner others start and end. A schedule with
    chunks leaves its first chunk there.
    """
    total = sum(run[0] for run in runs)
    most = np.minimum(space.chunks, space.layers // total)
    most = np.where((count % total == 0) & (total > 1), np.maximum(most, 1), 1)
    found = []
    for chunks, half in ((np.ones_like(total), 0.5 * space.halves), (most, 0.0)):
        place = total
        alone = both = np.zeros_like(total)
        for stages, forward, backward, *_ in reversed(runs):
            block = count * (forward + backward)
            deferred = half * np.minimum(place, count) * backward
            way = forward + (1 - half) * backward
            alone = _held(alone, stages, forward / chunks, block)
            both = _held(both, stages, way / chunks, block - deferred)
            place = place - stages
        _, forward, backward, *_ = runs[0]
        hidden = 1 - 1 / chunks  # the embedding is one of the layers of the first chunk
        least = space.blocks / alone - hidden * forward
        found.append(np.maximum(least, space.blocks / both - hidden * (forward + backward)))
    return np.minimum(*found)


def _whole_blocks(
    space: Space, count: int, runs: Sequence[Floats], low: Floats, below: float
) -> Floats:
    """Seconds from `low` on in which stages hold all blocks, if none is divided; infinite from
    `below` on."""
    each = [(run[0], count * (run[1] + run[2]) + run[3], run[4]) for run in runs]

    def holds(seconds: Floats) -> NDArray[np.bool_]:
        held = sum(
            stages * np.floor((seconds + hidden) / own + 1e-9) for stages, own, hidden in each
        )
        return np.asarray(held >= space.blocks)

    low, high = np.maximum(low, SHORTEST), np.full_like(low, min(below, LONGEST))
    enough = (low < high) & holds(high)
    for _ in range(STEPS):
        middle = np.sqrt(low * high)
        fits = holds(middle)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return np.where(enough, low, np.inf)


def _held(rate: Floats, stages: Floats, way: Floats, seconds: Floats) -> Floats:
    """Blocks that stages hold in each second of a step, with a run before them.

    A stage holds T / seconds blocks, x of which leave the next one way x seconds less. Hence v
    becomes v + (1 - way v) / seconds, or stays if the stage is so slow that no block is best.
    """
    kept = np.maximum(0.0, 1 - way / seconds) ** stages
    return np.maximum(rate, kept * rate + (1 - kept) / way)


def placed(
    stages: tuple[tuple[Part, ...], ...], micro_batch: int, most: tuple[int, ...],
    shares: tuple[int, ...] = (),
) -> Iterator[Shape]:  # fmt: skip
    """With both placements, where they differ."""
    shape = Shape(stages, micro_batch, most, True, shares)
    yield shape
    if shape.replicas > 1 and any(count > 1 for _, count in shape.runs):
        yield Shape(stages, micro_batch, most, False, shares)


def is_whole(terms: Terms, taken: Sequence[tuple[Part, int]]) -> bool:
    """Whether the stages occupy every rank."""
    ranks = sum(stages * part.count * part.width for part, stages in taken)
    return ranks == sum(pool.ranks for pool in terms.problem.pools)
