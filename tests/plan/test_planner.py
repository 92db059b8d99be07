"""Plans have the structure that docs/algorithms.md promises, and all ranks derive the same plan."""

import itertools
import random
from collections import Counter

import pytest
from generated import (
    COLLECTIVES,
    GBIT,
    applicable,
    random_spec,
    random_topology,
    topology_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcomm import _core
from hetcomm._core import (
    Collective,
    Plan,
    Planner,
    SelectionTable,
    Space,
    Spec,
    StepKind,
    Topology,
)

MI = 1 << 20
SEEDS = st.integers(0, 2**32)


def wire_counts(topology: Topology, plans: list[Plan]) -> tuple[list[int], list[int]]:
    """The elements that leave and that enter each island."""
    sent, received = [0] * len(topology.islands), [0] * len(topology.islands)
    for plan in plans:
        island = topology.island_of(plan.rank)
        for step in plan.steps:
            if step.kind == StepKind.send:
                assert topology.island_of(step.peer) != island, "a message inside an island"
                sent[island] += step.sources[0].count
            elif step.kind == StepKind.recv:
                received[island] += step.target.count
    return sent, received


def plans_for(topology: Topology, spec: Spec, algorithm: str) -> list[Plan]:
    return Planner(topology).plan_all(spec, algorithm)


@st.composite
def cases(draw: st.DrawFn, least_islands: int = 1) -> tuple[Topology, int]:
    """A topology of one island per host, in any order, and a count."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=least_islands, max_size=8))
    order = draw(st.sampled_from(["block", "interleaved"]))
    count = draw(st.one_of(st.integers(0, 70), st.integers(0, 3 * MI)))
    return topology_of(sizes, order=order), count


@settings(deadline=None, max_examples=60)
@given(cases())
def test_all_reduce_sends_the_documented_bytes(case: tuple[Topology, int]) -> None:
    topology, count = case
    k = len(topology.islands)
    for in_place in (False, True):
        spec = Spec(Collective.all_reduce, count=count, in_place=in_place)
        for algorithm in applicable(spec, topology):
            sent, received = wire_counts(topology, plans_for(topology, spec, algorithm.name))
            places = 1 << (k.bit_length() - 1)
            if algorithm.name == "hierarchical_direct":
                assert sent == received == [(k - 1) * count] * k
            elif algorithm.name == "hierarchical_doubling":
                rounds = places.bit_length() - 1
                assert sum(sent) == (places * rounds + 2 * (k - places)) * count
            else:
                assert sum(sent) == sum(received) == (0 if k == 1 else 2 * (k - 1) * count)


@pytest.mark.parametrize(
    ("algorithm", "k"),
    [
        *itertools.product(["hierarchical_scatter", "hierarchical_ring"], [3, 4, 8]),
        *itertools.product(["hierarchical_halving"], [4, 8, 16]),
    ],
)
def test_bandwidth_optimal_all_reduce_loads_all_islands_alike(algorithm: str, k: int) -> None:
    count = 24 * MI
    spec = Spec(Collective.all_reduce, count=count)
    topology = topology_of([4] * k)
    sent, received = wire_counts(topology, plans_for(topology, spec, algorithm))
    for elements in sent + received:
        assert elements == pytest.approx(2 * (k - 1) * count / k, rel=0.01)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 200)), min_size=3, max_size=8),
    st.sampled_from(["block", "interleaved"]),
)
def test_scatter_keeps_every_uplink_within_the_bound(
    islands: list[tuple[int, int]], order: str
) -> None:
    count, k = 3 * MI, len(islands)
    uplinks = [times * GBIT for _, times in islands]
    topology = topology_of([size for size, _ in islands], uplinks, order)
    spec = Spec(Collective.all_reduce, count=count)
    sent, received = wire_counts(topology, plans_for(topology, spec, "hierarchical_scatter"))
    assert sum(sent) == sum(received) == 2 * (k - 1) * count
    bound = max(count / min(uplinks), 2 * (k - 1) * count / sum(uplinks))
    for elements, uplink in zip([*sent, *received], [*uplinks, *uplinks], strict=True):
        assert elements / uplink <= 1.02 * bound


def test_members_of_an_island_share_the_bridge_alike() -> None:
    plans = plans_for(
        topology_of([8, 8]), Spec(Collective.all_reduce, count=MI), "hierarchical_direct"
    )
    for plan in plans:
        sent = sum(s.sources[0].count for s in plan.steps if s.kind == StepKind.send)
        assert sent == MI // 8


@settings(deadline=None, max_examples=60)
@given(cases())
def test_rooted_collectives_cross_once(case: tuple[Topology, int]) -> None:
    topology, count = case
    n, islands = len(topology), topology.islands
    root = n // 2
    home = topology.island_of(root)
    others = [i for i in range(len(islands)) if i != home]
    for name in ("broadcast", "reduce", "gather", "scatter"):
        spec = Spec(Collective.__members__[name], count=count, root=root)
        for algorithm in applicable(spec, topology):
            sent, received = wire_counts(topology, plans_for(topology, spec, algorithm.name))
            inward, outward = (sent, received) if name in ("reduce", "gather") else (received, sent)
            blocks = name in ("gather", "scatter")
            assert inward[home] == 0
            for i in others:
                assert inward[i] == (len(islands[i]) * count if blocks else count)
            if algorithm.name == "hierarchical_chain":
                assert all(elements in (0, count) for elements in outward)
            elif algorithm.name == "hierarchical_tree":
                assert outward[home] == (len(islands) - 1).bit_length() * count
                assert sum(outward) == sum(inward)
            else:
                assert outward[home] == sum(inward)


@settings(deadline=None, max_examples=60)
@given(cases())
def test_block_collectives_cross_once(case: tuple[Topology, int]) -> None:
    topology, count = case
    n, k = len(topology), len(topology.islands)
    sizes = [len(members) for members in topology.islands]
    foreign = [(n - size) * count for size in sizes]
    own = [(k - 1) * size * count for size in sizes]
    pairs = [size * (n - size) * count for size in sizes]
    wanted = {
        "all_gather": (own, foreign),
        "reduce_scatter": (foreign, own),
        "all_to_all": (pairs, pairs),
    }
    for name, (leaving, entering) in wanted.items():
        spec = Spec(Collective.__members__[name], count=count)
        for algorithm in applicable(spec, topology):
            plans = plans_for(topology, spec, algorithm.name)
            assert wire_counts(topology, plans) == (leaving, entering)


def block_traffic(sizes: list[int], uplinks: list[int], count: int) -> tuple[list[int], list[int]]:
    """The elements that leave and enter each island in an all_gather; those of a reduce_scatter are
    these, in the other direction."""
    topology = topology_of(sizes, uplinks)
    spec = Spec(Collective.all_gather, count=count)
    sent, received = wire_counts(topology, plans_for(topology, spec, "hierarchical"))
    spec = Spec(Collective.reduce_scatter, count=count)
    mirrored = wire_counts(topology, plans_for(topology, spec, "hierarchical"))
    assert mirrored == (received, sent)
    return sent, received


def test_blocks_behind_a_slow_uplink_have_a_relay() -> None:
    """A slow island sends each block once. Each of two fast islands relays one slow island."""
    uplinks = [2 * GBIT, 2 * GBIT, GBIT // 2, GBIT // 2]
    sent, received = block_traffic([1, 1, 2, 2], uplinks, MI)
    assert sent == [(3 + 2 * 2) * MI, (3 + 2 * 2) * MI, 2 * MI, 2 * MI]
    assert received == [5 * MI, 5 * MI, 4 * MI, 4 * MI]


@pytest.mark.parametrize(
    ("uplinks", "count"),
    [
        ([2, 2, 2], MI),
        ([3, 3, 2], MI),  # hardly slower
        ([2, 2, 1], 16),  # a short block
        ([2, 1], MI),  # nobody else receives the block
        ([2, 1, 1, 1, 1, 1, 1], MI),  # a relay would be busy for most of the step
    ],
)
def test_other_blocks_have_no_relay(uplinks: list[int], count: int) -> None:
    k = len(uplinks)
    sent, received = block_traffic([1] * k, [each * GBIT for each in uplinks], count)
    assert sent == received == [(k - 1) * count] * k


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5), st.sampled_from(["block", "interleaved"])
)
def test_aggregated_all_to_all_sends_one_message_to_each_foreign_rank(
    sizes: list[int], order: str
) -> None:
    topology = topology_of(sizes, order=order)
    n, spec = len(topology), Spec(Collective.all_to_all, count=5)
    for algorithm, messages in [
        ("direct", lambda members: members * (n - members)),
        ("aggregated", lambda members: n - members),
    ]:
        sent = [0] * len(sizes)
        for plan in plans_for(topology, spec, algorithm):
            island = topology.island_of(plan.rank)
            sent[island] += sum(step.kind == StepKind.send for step in plan.steps)
        assert sent == [messages(len(members)) for members in topology.islands]


def test_unequal_blocks_are_always_sent_directly() -> None:
    """A rank knows only its own splits, so no choice may depend on them."""
    planner = Planner(topology_of([3, 2]), SelectionTable("all_to_all:0-inf=aggregated"))
    equal = planner.plan(Spec(Collective.all_to_all, count=5), 0)
    unequal = planner.plan(Spec(Collective.all_to_all, splits=[1, 2, 3, 4, 5] * 5), 0)
    assert (equal.algorithm, unequal.algorithm) == ("aggregated", "direct")
    choice = planner.choose(Spec(Collective.all_to_all, splits=[1, 2, 3, 4, 5] * 5))
    assert choice.algorithm.name == "direct" and "unequal" in choice.why


@pytest.mark.parametrize("sizes", [[8, 1, 1, 1, 1, 1, 1, 1, 1], [3, 5, 4], [2, 7]])
def test_members_of_an_island_send_aggregated_messages_in_turn(sizes: list[int]) -> None:
    topology = topology_of(sizes)
    plans = plans_for(topology, Spec(Collective.all_to_all, count=5), "aggregated")
    sent = [sum(step.kind == StepKind.send for step in plan.steps) for plan in plans]
    for members in topology.islands:
        counts = [sent[rank] for rank in members]
        assert max(counts) - min(counts) <= 1


def test_short_blocks_of_large_islands_are_aggregated() -> None:
    planner = Planner(topology_of([8, 8]))
    chosen = [
        planner.plan(Spec(Collective.all_to_all, count=count), 0).algorithm
        for count in (4, 4096, MI // 64)  # elements of float32, by 16 ranks
    ]
    assert chosen == ["aggregated", "direct", "direct"]


def test_short_blocks_of_many_ranks_are_aggregated() -> None:
    planner = Planner(topology_of([8] * 40))
    assert planner.plan(Spec(Collective.all_to_all, count=4), 0).algorithm == "aggregated"
    assert planner.plan(Spec(Collective.all_to_all, count=MI), 0).algorithm == "direct"


def test_barrier_is_one_exchange_of_one_element() -> None:
    topology = topology_of([3, 1, 2])
    sent, _ = wire_counts(topology, plans_for(topology, Spec(Collective.barrier), "direct"))
    assert sent == [2, 2, 2]


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda collective: collective.name)
def test_one_island_needs_one_step(collective: Collective) -> None:
    topology = topology_of([5])
    spec = Spec(collective, count=0 if collective == Collective.barrier else 1000, root=3)
    first = next(applicable(spec, topology))
    kinds = [step.kind for step in plans_for(topology, spec, first.name)[0].steps]
    if collective == Collective.barrier:
        assert kinds == [StepKind.island_reduce_scatter, StepKind.island_all_gather]
    else:
        assert len(kinds) == 1 and kinds[0].name.startswith("island_")


@settings(deadline=None, max_examples=60)
@given(SEEDS)
def test_one_rank_derives_the_same_plan_as_all_ranks(seed: int) -> None:
    rng = random.Random(seed)
    topology = random_topology(rng)
    spec = random_spec(rng, rng.choice(COLLECTIVES), len(topology))
    plans = Planner(topology).plan_all(spec)
    for rank in rng.sample(range(len(topology)), min(4, len(topology))):
        alone = Planner(topology).plan(spec, rank)
        assert alone.steps == plans[rank].steps
        assert alone.scratch_bytes == plans[rank].scratch_bytes
        assert alone.members == plans[rank].members == topology.islands[topology.island_of(rank)]
        assert alone.algorithm == plans[rank].algorithm
        assert (alone.rank, alone.size) == (rank, len(plans))


@settings(deadline=None, max_examples=60)
@given(SEEDS)
def test_steps_are_well_formed(seed: int) -> None:
    rng = random.Random(seed)
    topology = random_topology(rng, most_ranks=16)
    spec = random_spec(rng, rng.choice(COLLECTIVES), len(topology))
    for algorithm in applicable(spec, topology):
        for plan in plans_for(topology, spec, algorithm.name):
            for index, step in enumerate(plan.steps):
                ranges = step.reads(plan.rank) + step.writes(plan.rank)
                if not spec.splits:  # an empty message still tells that ranks agree
                    assert all(each.count > 0 for each in ranges)
                assert not (spec.in_place and any(each.space == Space.input for each in ranges))
                assert step.after == sorted(set(step.after))
                assert all(0 <= earlier < index for earlier in step.after)
                implied = {a for earlier in step.after for a in plan.steps[earlier].after}
                assert not implied.intersection(step.after)


def test_chunks_keep_the_wire_ahead_of_the_all_gather() -> None:
    plan = Planner(topology_of([4, 4])).plan(Spec(Collective.all_reduce, count=8 * MI), 0)
    kinds = [s.kind for s in plan.steps if s.kind.name.startswith("island_")]
    chunks = kinds.count(StepKind.island_reduce_scatter)
    assert chunks == kinds.count(StepKind.island_all_gather) == 32
    first = kinds.index(StepKind.island_all_gather)
    assert 2 <= first <= 8
    for position, kind in enumerate(kinds):
        if kind == StepKind.island_all_gather:
            ahead = Counter(kinds[: position + 1])
            scattered = ahead[StepKind.island_reduce_scatter]
            assert scattered == min(chunks, ahead[StepKind.island_all_gather] + first - 1)


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "all_gather", "all_to_all"])
def test_scratch_is_a_fraction_of_a_large_message(name: str) -> None:
    topology = topology_of([4, 4, 4])
    spec = Spec(Collective.__members__[name], count=64 * MI)
    for algorithm in applicable(spec, topology):
        for plan in plans_for(topology, spec, algorithm.name):
            assert plan.scratch_bytes <= 4 * spec.count // 8


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize(
    ("sizes", "megabits"),
    [
        ([1, 1], [1000, 1000]),
        ([1, 3], [1000, 1000]),
        ([3, 2, 2], [1000, 1000, 1000]),
        ([1, 1, 1, 1], [1000, 1000, 1000, 1000]),
        ([1, 1, 1], [1000, 1000, 100]),  # one share of the sums is small, and blocks have a relay
        ([5, 6, 7, 8], [1000, 1000, 1000, 1000]),  # chunks that no cut fits
        ([2, 2, 2, 2], [10000, 1000, 1000, 1000]),
    ],
)
def test_scratch_is_bounded_for_every_size(
    sizes: list[int], megabits: list[int], codec: str
) -> None:
    planner = _core.Planner(topology_of(sizes, [rate * 125_000 for rate in megabits]))
    for algorithm in _core.algorithms():
        for gibibytes in (1, 8):
            whole = algorithm.collective.name in ("all_reduce", "broadcast", "reduce")
            count = (gibibytes << 28) // (1 if whole else sum(sizes))
            spec = Spec(algorithm.collective, count=count, codec=codec)
            try:
                plans = planner.plan_all(spec, algorithm.name)
            except _core.InvalidArgumentError:
                continue  # the algorithm does not apply
            most = max(plan.scratch_bytes for plan in plans)
            assert most <= 64 << 20, (algorithm, gibibytes, most)


def test_every_algorithm_is_documented(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "algorithms.md").read_text()
    for algorithm in _core.algorithms():
        assert f"| `{algorithm.collective.name}` | `{algorithm.name}` |" in page
