"""Pools, and the shapes that serve a model on them, against a plain enumeration."""

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import DEVICES, cluster_of, profile_of, small_model

from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.explain import topology_of
from hetcomm.plan import PlannedNetwork, Runtime
from hetcomm.plan.search.pools import Pool, names, pools_of
from hetcomm.plan.search.replicas import replica_groups
from hetcomm.plan.search.shapes import Part, Shape, spans_of
from hetcomm.plan.search.space import Space, divisors, stage_groups
from hetcomm.plan.search.terms import Problem, Terms

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


def test_hosts_of_unlike_zones_are_not_alike() -> None:
    hosts = [Host(name, 2, (IB,), "nvidia", "A100", zone=zone) for name, zone in ("ax", "by")]
    assert [pool.uniform for pool in pools_of(Cluster(tuple(hosts)))] == [False]
    hosts[1] = Host("b", 2, (IB,), "nvidia", "A100", zone="x")
    assert [pool.uniform for pool in pools_of(Cluster(tuple(hosts)))] == [True]


MODEL = small_model(blocks=3)
INFINITE = float("inf")


@st.composite
def spaces(draw: st.DrawFn) -> tuple[Terms, Space]:
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    cluster = cluster_of(dict(zip(DEVICES, counts, strict=False)), ranks=draw(st.integers(1, 4)))
    kinds = [cluster.hosts[place].kind for place in cluster.placement]
    network = PlannedNetwork(topology_of(cluster))
    # No device runs five ranks of a tensor group.
    profile = profile_of(MODEL, DEVICES, tensors=(1, 2), micro_batches=(1, 2))
    problem = Problem(MODEL, profile, network, kinds, pools_of(cluster), Runtime())
    space = Space(
        tuple(range(len(problem.pools))),
        layers=MODEL.layers,
        batch=draw(st.sampled_from([1, 4, 6])),
        tensors=(1, 2, 5),
        contexts=draw(st.sampled_from([(1,), (1, 2)])),
        micro_batches=(1, 2),
        every_rank=draw(st.booleans()),
        tied=draw(st.booleans()),
    )
    return Terms(problem), space


def every_stages(terms: Terms, space: Space) -> set[tuple[tuple[tuple[Part, ...], ...], int]]:
    """The stages and micro-batch of each shape of the first family, from the definition."""
    found = set()
    for replicas in range(1, space.batch + 1):
        for micro_batch, context in product(space.micro_batches, space.contexts):
            if space.batch % (replicas * micro_batch):
                continue
            for count in range(1, len(space.pools) + 1):
                for order in permutations(space.pools, count):
                    for tensors in product((1, 2), repeat=count):
                        if space.tied and tensors[0] != tensors[-1]:
                            continue
                        for each in product(range(1, space.layers + 1), repeat=count):
                            stages = tuple(
                                (Part(pool, tensor, context, replicas),)
                                for pool, tensor, run in zip(order, tensors, each, strict=True)
                                for _ in range(run)
                            )
                            if len(stages) <= space.layers and fits(terms, space, stages):
                                found.add((stages, micro_batch))
    return found


def fits(terms: Terms, space: Space, stages: tuple[tuple[Part, ...], ...]) -> bool:
    used, pools = 0, terms.problem.pools
    for index, pool in enumerate(pools):
        parts = [part for stage in stages for part in stage if part.pool == index]
        if parts and sum(part.count for part in parts) > pool.capacity(parts[0].width):
            return False
        used += sum(part.count * part.width for part in parts)
    return not space.every_rank or used == sum(pool.ranks for pool in pools)


def shapes_of(terms: Terms, space: Space, groups) -> list[tuple[float, Shape]]:  # type: ignore[no-untyped-def]
    shapes = []
    for group in groups(terms, space):
        found = list(group.shapes(terms, space, INFINITE))
        assert [bound for bound, _ in found] == sorted(bound for bound, _ in found)
        assert all(group.bound <= bound * (1 + 1e-9) for bound, _ in found)
        below = found[len(found) // 2][0] if found else 0.0
        kept = {shape for _, shape in group.shapes(terms, space, below)}
        assert kept <= {shape for _, shape in found}
        assert all(bound >= 0.99 * below for bound, shape in found if shape not in kept)
        shapes += found
    return shapes


@settings(deadline=None, max_examples=30)
@given(spaces())
def test_each_shape_of_the_first_family_comes_once(given_space: tuple[Terms, Space]) -> None:
    shapes = shapes_of(*given_space, stage_groups)
    across = [(shape.stages, shape.micro_batch) for _, shape in shapes if shape.across]
    assert len(across) == len(set(across))
    assert set(across) == every_stages(*given_space)


@settings(deadline=None, max_examples=30)
@given(spaces())
def test_shapes_have_valid_places_and_work(given_space: tuple[Terms, Space]) -> None:
    terms, space = given_space
    pools = terms.problem.pools
    ranks = {rank for pool in pools for host in pool.hosts for rank in host}
    shapes = shapes_of(terms, space, stage_groups) + shapes_of(terms, space, replica_groups)
    for bound, shape in shapes:
        stages = shape.place(pools)
        placed = [rank for stage in stages for replica in stage for rank in replica.ranks]
        assert 0 < bound < INFINITE
        assert len(placed) == len(set(placed)) == shape.ranks
        assert set(placed) <= ranks
        assert not space.every_rank or set(placed) == ranks
        assert {len(stage) for stage in stages} == {shape.replicas}
        assert not space.tied or stages[0][0].tensor == stages[-1][0].tensor
        for stage, parts in zip(stages, shape.stages, strict=True):
            wanted = [part for part in parts for _ in range(part.count)]
            for replica, part in zip(stage, wanted, strict=True):
                assert (replica.tensor, replica.context) == (part.tensor, part.context)
                inside = [host for host in pools[part.pool].hosts if replica.ranks[0] in host]
                assert set(replica.ranks) <= set(inside[0])
            assert len({part.tensor for part in parts}) == 1
        together = space.batch // shape.micro_batch
        if shape.shares:
            assert sum(shape.shares) == together and len(set(shape.shares)) > 1
            assert min(shape.shares) > 0 and max(shape.shares) == max(shape.micro_batches)
        else:
            assert set(shape.micro_batches) == {together // shape.replicas}


def two_pools() -> tuple[Terms, Space]:
    """Two V100 and one A100, each on a host of its own."""
    cluster = cluster_of({"V100": 2, "A100": 1}, ranks=1)
    kinds = [cluster.hosts[place].kind for place in cluster.placement]
    profile = profile_of(MODEL, DEVICES, tensors=(1,), micro_batches=(1,))
    network = PlannedNetwork(topology_of(cluster))
    terms = Terms(Problem(MODEL, profile, network, kinds, pools_of(cluster), Runtime()))
    return terms, Space((0, 1), layers=5, batch=12, tensors=(1,), micro_batches=(1,))


def test_a_faster_pool_serves_more_replicas_or_more_micro_batches() -> None:
    shapes = {
        shape for _, shape in shapes_of(*two_pools(), replica_groups) if len(shape.stages) == 1
    }
    fast, slow = Part(1, 1, 1, 1), Part(0, 1, 1, 2)
    assert Shape(((fast, Part(0, 1, 1, 1)),), 1, (6, 6)) in shapes
    assert Shape(((fast, slow),), 1, (4, 4)) in shapes
    (unequal,) = [shape for shape in shapes if shape.shares]
    assert unequal == Shape(((fast, slow),), 1, (7, 3), True, (7, 3, 2))


def test_chunks_of_a_stage_differ_by_one_layer_at_most() -> None:
    assert spans_of([3, 2], 1) == [[(0, 3)], [(3, 5)]]
    assert spans_of([3, 2], 2) == [[(0, 2), (3, 4)], [(2, 3), (4, 5)]]


@pytest.mark.parametrize(
    ("number", "expected"), [(1, [1]), (12, [1, 2, 3, 4, 6, 12]), (9, [1, 3, 9])]
)
def test_divisors(number: int, expected: list[int]) -> None:
    assert divisors(number) == expected
