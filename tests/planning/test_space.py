"""Pools, and the shapes that serve a model on them, against a plain enumeration."""

from itertools import combinations_with_replacement, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.plan.search.pools import Pool, names, pools_of
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.space import (
    STEP,
    ShapeGroup,
    Space,
    Window,
    divisors,
    replica_shapes,
    stage_shapes,
)

IB, ROCE, ETHERNET = (Nic(10**9, 10**9, fabric) for fabric in ("infiniband", "roce", "ethernet"))


def test_pools_have_one_kind_and_one_fabric() -> None:
    cluster = Cluster(
        (
            Host("a", 2, (ETHERNET, IB), "nvidia", "A100"),
            Host("b", 1, (ROCE,), "nvidia", "A100"),
            Host("c", 3, (ETHERNET,), "amd"),
            Host("d", 1, (IB,), "nvidia", "A100"),
        ),
        "interleaved",
    )
    pools = pools_of(cluster)
    assert pools == [
        Pool("A100", "infiniband", ((0, 4), (3,)), uniform=False),
        Pool("A100", "roce", ((1,),)),
        Pool("amd", "ethernet", ((2, 5, 6),)),
    ]
    assert names(pools) == ["A100 over infiniband", "A100 over roce", "amd"]
    assert pools[0].slots(1) == [(0,), (4,), (3,)]
    assert (pools[0].slots(2), pools[0].capacity(2), pools[0].widest) == ([(0, 4)], 1, 2)


def seconds(pool: int, tensor: int, context: int, micro_batch: int) -> float | None:
    """Pool 0 is twice as fast; no device runs five ranks of a tensor group."""
    return None if tensor == 5 else (pool + 1) * micro_batch / (tensor * context) ** 0.9


class Blocks:
    """Prices of blocks alone: no reductions. faster: the pool that is twice as fast."""

    def __init__(self, space: Space, faster: int = 0) -> None:
        self.space, self.faster = space, faster

    def block_seconds(self, pool: int, tensor: int, context: int, micro_batch: int) -> float | None:
        return seconds(pool ^ self.faster, tensor, context, micro_batch)

    def forward_seconds(self, part: Part, micro_batch: int) -> float:
        each = self.block_seconds(part.pool, part.tensor, part.context, micro_batch)
        assert each is not None
        return each / 3

    def back_seconds(self, part: Part, micro_batch: int, chunks: int) -> float:
        return 2 * self.forward_seconds(part, micro_batch) / (2 if chunks == 1 else 1)

    def transfer(self, part: Part, count: int, micro_batch: int, across: bool) -> float:
        return 0.1 * part.pool + 0.05

    def most_chunks(self, stages: int, micro_batches: int) -> int:
        return 2 if micro_batches % stages == 0 else 1

    def rows(
        self, parts: tuple[Part, ...], count: int, micro_batch: int, across: bool
    ) -> list[np.ndarray]:
        replicas = sum(part.count for part in parts)
        slowest = max(self.forward_seconds(part, micro_batch) for part in parts) * 3
        each = self.space.batch // (replicas * micro_batch) * slowest
        return [np.arange(self.space.layers - 1) * each] * count

    alone = rows


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    sizes = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=2), max_size=3))
    pools, first = [], 0
    for index, hosts in enumerate(sizes or [[2]]):
        ranks = []
        for count in hosts:
            ranks.append(tuple(range(first, first + count)))
            first += count
        pools.append(Pool(f"kind {index}", "ethernet", tuple(ranks)))
    return Space(
        pools,
        layers=draw(st.integers(3, 5)),
        batch=draw(st.sampled_from([1, 4, 6])),
        tensors=(1, 2, 5),
        contexts=draw(st.sampled_from([(1,), (1, 2)])),
        micro_batches=(1, 2),
        every_rank=draw(st.booleans()),
        tied=draw(st.booleans()),
    )


def every_stages(space: Space) -> set[tuple[tuple[tuple[Part, ...], ...], int]]:
    """The stages and micro-batch of each shape of the first family, from the definition."""
    found = set()
    numbers = range(len(space.pools))
    for replicas in range(1, space.batch + 1):
        for micro_batch, context in product(space.micro_batches, space.contexts):
            if space.batch % (replicas * micro_batch):
                continue
            for count in range(1, len(space.pools) + 1):
                for order in permutations(numbers, count):
                    for tensors in product((1, 2), repeat=count):
                        if space.tied and tensors[0] != tensors[-1]:
                            continue
                        for each in product(range(1, space.layers + 1), repeat=count):
                            stages = tuple(
                                (Part(pool, tensor, context, replicas),)
                                for pool, tensor, run in zip(order, tensors, each, strict=True)
                                for _ in range(run)
                            )
                            if len(stages) <= space.layers and fits(space, stages):
                                found.add((stages, micro_batch))
    return found


def fits(space: Space, stages: tuple[tuple[Part, ...], ...]) -> bool:
    used = 0
    for index, pool in enumerate(space.pools):
        parts = [part for stage in stages for part in stage if part.pool == index]
        if parts and sum(part.count for part in parts) > pool.capacity(parts[0].width):
            return False
        used += sum(part.count * part.width for part in parts)
    return not space.every_rank or used == sum(pool.ranks for pool in space.pools)


def windows(space: Space, family) -> list[tuple[float, Shape]]:  # type: ignore[no-untyped-def]
    """All shapes of a family, window after window."""
    shapes = []
    for group in space.groups():
        low, high = 0.0, 0.7
        while low < float("inf"):
            window = Window(low, high, float("inf"))
            found, further = family(space, Blocks(space), group, window)
            assert all(low <= bound for bound, _ in found)
            assert further >= high
            shapes += found
            low, high = further, further * 1.5
    return shapes


@settings(deadline=None, max_examples=50)
@given(spaces())
def test_each_shape_of_the_first_family_comes_once(space: Space) -> None:
    shapes = windows(space, stage_shapes)
    across = [(shape.stages, shape.micro_batch) for _, shape in shapes if shape.across]
    assert len(across) == len(set(across))
    assert set(across) == every_stages(space)


@settings(deadline=None)
@given(spaces(), st.sampled_from([stage_shapes, replica_shapes]))
def test_shapes_have_valid_places_and_bounds(space: Space, family) -> None:  # type: ignore[no-untyped-def]
    ranks = {rank for pool in space.pools for host in pool.hosts for rank in host}
    for bound, shape in windows(space, family):
        stages = shape.place(space.pools)
        placed = [rank for stage in stages for replica in stage for rank in replica.ranks]
        assert len(placed) == len(set(placed)) == shape.ranks
        assert set(placed) <= ranks
        assert not space.every_rank or set(placed) == ranks
        assert {len(stage) for stage in stages} == {shape.replicas}
        assert not space.tied or stages[0][0].tensor == stages[-1][0].tensor
        for stage, parts in zip(stages, shape.stages, strict=True):
            wanted = [part for part in parts for _ in range(part.count)]
            for replica, part in zip(stage, wanted, strict=True):
                assert (replica.tensor, replica.context) == (part.tensor, part.context)
                inside = [host for host in space.pools[part.pool].hosts if replica.ranks[0] in host]
                assert set(replica.ranks) <= set(inside[0])
            assert len({part.tensor for part in parts}) == 1
        least = fastest(space, shape)
        assert least / STEP**2 <= bound <= filled(space, shape) * (1 + 1e-12)


def filled(space: Space, shape: Shape) -> float:
    """The least seconds of all divisions of the blocks, where each stage waits for the first chunks
    before it, and the first one for those on the way back."""
    prices = Blocks(space)
    micro_batches = space.batch // (shape.replicas * shape.micro_batch)
    most = prices.most_chunks(len(shape.stages), micro_batches)
    return min(filled_by(space, shape, micro_batches, chunks) for chunks in {1, most})


def filled_by(space: Space, shape: Shape, micro_batches: int, chunks: int) -> float:
    prices, stages, size = Blocks(space), len(shape.stages), shape.micro_batch
    rows = [prices.rows(parts, 1, size, shape.across)[0].tolist() for parts in shape.stages]
    first = [parts[0] for parts in shape.stages]
    forward = [prices.forward_seconds(part, size) for part in first]
    back = [prices.back_seconds(part, size, chunks) for part in first]
    deferred = [2 * f - b for f, b in zip(forward, back, strict=True)]
    moved = [
        prices.transfer(a, 1, size, shape.across) if a == b else 0.0 for a, b in pairwise(first)
    ]
    least = float("inf")
    for cuts in combinations_with_replacement(range(space.layers - 1), stages - 1):
        start = way_back = step = 0.0
        division = [b - a for a, b in pairwise((0, *cuts, space.layers - 2))]
        if 0 in division[1:-1]:
            continue  # a stage without layers
        for s, blocks in enumerate(division):
            busy = micro_batches * 3 * forward[s] - min(s + 1, micro_batches) * deferred[s]
            step = max(step, start + rows[s][blocks], start + blocks * busy + way_back)
            own = -(-(blocks + (s == 0)) // chunks) - (s == 0)
            start += own * forward[s] + (moved[s] if s + 1 < stages else 0.0)
            way_back += own * back[s] + (moved[s] if s + 1 < stages else 0.0)
        least = min(least, step)
    return least


def fastest(space: Space, shape: Shape) -> float:
    """Seconds in which the stages hold all blocks, with the slowest replica of each stage."""
    each = [
        Blocks(space).rows(parts, count, shape.micro_batch, shape.across)[0]
        for parts, count in shape.runs
        for _ in range(count)
    ]
    for within in sorted({seconds for row in each for seconds in row}):
        held = sum(int(np.sum(row <= within)) - 1 for row in each)
        if held >= space.layers - 2:
            return within
    raise AssertionError("one stage holds all blocks")


@settings(deadline=None)
@given(spaces(), st.sampled_from([stage_shapes, replica_shapes]), st.floats(0.5, 20))
def test_shapes_that_hold_too_few_blocks_are_left_out(space: Space, family, below: float) -> None:  # type: ignore[no-untyped-def]
    for group in space.groups():
        every = Window(0.0, float("inf"), float("inf"))
        shapes, _ = family(space, Blocks(space), group, every)
        kept, _ = family(space, Blocks(space), group, every._replace(below=below))
        assert {shape for _, shape in kept} <= {shape for _, shape in shapes}
        left_out = {shape for _, shape in shapes} - {shape for _, shape in kept}
        assert all(filled(space, shape) >= below / STEP for shape in left_out)


def test_replicas_of_whole_pipelines_prefer_the_faster_pool() -> None:
    pools = [Pool("slow", "ethernet", ((0, 1), (2, 3))), Pool("fast", "ethernet", ((4, 5),))]
    space = Space(pools, layers=4, batch=6, tensors=(1, 2), micro_batches=(1,))

    every = Window(0.0, 1e9, 1e9)
    found, _ = replica_shapes(space, Blocks(space, faster=1), ShapeGroup(3, 1, 1), every)
    shapes = [shape for _, shape in found]
    assert {shape.stages for shape in shapes} >= {
        ((Part(1, 1, 1, 2), Part(0, 1, 1, 1)),),
        ((Part(1, 2, 1, 1), Part(0, 2, 1, 2)),),
        ((Part(1, 1, 1, 1), Part(0, 1, 1, 2)),) * 2,
    }


@pytest.mark.parametrize(
    ("number", "expected"), [(1, [1]), (12, [1, 2, 3, 4, 6, 12]), (9, [1, 3, 9])]
)
def test_divisors(number: int, expected: list[int]) -> None:
    assert divisors(number) == expected
