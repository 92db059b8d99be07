"""The search against all layouts there are, on small clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import DEVICES, cluster_of, profile_of, small_model

from hetcomm.emulate import Cluster, Host, Nic, Zone
from hetcomm.explain import topology_of
from hetcomm.plan import PlannedNetwork, Runtime
from hetcomm.plan.layout import Layout, Replica, Stage
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.runtime import HETCOMM
from hetcomm.plan.profile import NO_WORK, HostWork
from hetcomm.plan.search.nodes import OfDivisions, OfSettings, OfShape, Search
from hetcomm.plan.search.pools import pools_of
from hetcomm.plan.search.replicas import replica_groups
from hetcomm.plan.search.search import fitting, predicted, search
from hetcomm.plan.search.settings import SettingsSpace
from hetcomm.plan.search.space import Space, stage_groups
from hetcomm.plan.search.terms import Problem, Terms, distinct_levels

MODEL = small_model(blocks=2)
DEEP = small_model(blocks=7)
INFINITE = float("inf")


def search_of(
    cluster: Cluster,
    batch: int,
    memory: float = 1e12,
    runtime: Runtime | None = None,
    schedules: Sequence[str] = ("1f1b",),
    contexts: Sequence[int] = (1,),
    work: HostWork = NO_WORK,
    model: Model = MODEL,
    chunks: Sequence[int] = (2,),
    processors: float | None = None,
    slower: Mapping[str, float] | None = None,
) -> Search:
    """slower: how many times as long a layer of a kind takes on V100."""
    devices = {name: replace(device, memory=memory) for name, device in DEVICES.items()}
    network = PlannedNetwork(topology_of(cluster))
    kinds = [cluster.hosts[place].kind for place in cluster.placement]
    profile = profile_of(model, devices, tensors=(1, 2), micro_batches=(1, 2))
    factors = {"V100": slower or {}}
    rows = tuple(
        replace(row, forward=row.forward * factor, backward=row.backward * factor)
        for row in profile.rows
        for factor in [factors.get(row.device, {}).get(row.layer, 1.0)]
    )
    work = dict.fromkeys(devices, work)
    profile = replace(profile, rows=rows, host_work=work, processors=processors)
    problem = Problem(model, profile, network, kinds, pools_of(cluster), runtime or Runtime())
    levels = distinct_levels(problem)
    space = Space(
        tuple(range(len(problem.pools))), model.layers, batch, (1, 2), contexts, (1, 2),
        chunks=max(chunks) if "interleaved" in schedules else 1,
        halves="zero_bubble" in schedules, levels=levels,
    )  # fmt: skip
    settings_space = SettingsSpace(schedules, chunks=chunks, levels=levels)
    return Search(Terms(problem), space, settings_space)


def every_layout(root: Search) -> Iterator[Layout]:
    """All layouts of the space, by plain enumeration."""
    terms, space = root.terms, root.space
    shapes = [
        shape
        for every in (stage_groups, replica_groups)
        for group in every(terms, space)
        for _, shape in group.shapes(terms, space, INFINITE)
    ]
    for shape in shapes:
        for each in root.settings(shape):
            for ends in combinations(range(1, space.layers), len(shape.stages) - 1):
                counts = [b - a for a, b in pairwise((0, *ends, space.layers))]
                if min(counts) >= each.chunks:
                    yield root.layout(shape, each, counts)


CLUSTERS = st.sampled_from(
    [
        cluster_of({"A100": 2}, ranks=1, rate=10**9),
        cluster_of({"A100": 2, "V100": 2}, ranks=2, rate=10**10),
        cluster_of({"A100": 1, "V100": 3}, ranks=2, rate=10**9),
        cluster_of({"A100": 2, "V100": 1}, ranks=4, rate=10**11, fabrics={"V100": "ethernet"}),
    ]
)
# Everything fits; much fits only if partitioned or computed again; nearly nothing fits.
MEMORY = st.sampled_from([1e12, 2.16e9, 2.1e9])
RUNTIMES = st.sampled_from(
    [
        HETCOMM,
        Runtime(),
        Runtime(overlap_gradients=False, barrier=True),
        Runtime(blocking=True, parts=True),
    ]
)
SCHEDULES = st.sampled_from([("1f1b", "interleaved"), ("gpipe", "zero_bubble")])
CONTEXTS = st.sampled_from([(1,), (1, 2)])
WORKS = st.sampled_from([NO_WORK, HostWork(2e-5, 1e-5, 1e-10), HostWork(2e-3, 1e-3, 0.0)])


@st.composite
def searches(draw: st.DrawFn) -> Search:
    runtime = draw(RUNTIMES)
    schedules = ("1f1b", "zero_bubble") if runtime.blocking else draw(SCHEDULES)
    batch = draw(st.sampled_from([2, 4]))
    return search_of(
        draw(CLUSTERS), batch, draw(MEMORY), runtime, schedules, draw(CONTEXTS), draw(WORKS)
    )


@settings(deadline=None, max_examples=15)
@given(searches())
def test_the_best_of_all_layouts_is_found(root: Search) -> None:
    problem, least = root.terms.problem, float("inf")
    for layout in every_layout(root):
        if fitting(problem, layout, root.settings_space.levels) is not None:
            least = min(least, predicted(problem, layout).seconds)
    found = search(root, tolerance=0.0)
    assert not found.cut
    if least == float("inf"):
        assert not found.best
    else:
        assert found.best[0][0] == pytest.approx(least, rel=1e-9)
        assert found.bound == pytest.approx(least, rel=1e-9)


# Stages of several chunks, and stages that share the NICs of their hosts.
CROWDED = st.sampled_from(
    [
        cluster_of({"A100": 8}, ranks=2, rate=10**9),
        cluster_of({"A100": 8}, ranks=4, rate=10**11),
        cluster_of({"A100": 4, "V100": 4}, ranks=4, rate=10**8),
        cluster_of({"A100": 4, "V100": 4, "H100": 4}, ranks=2, rate=10**10),
        Cluster(
            tuple(
                Host(f"h{i}", 2, (Nic(10**9, 10**9),), device="A100", zone=zone)
                for i, zone in enumerate("xxyy")
            ),
            zones=(Zone("x", 10**8), Zone("y", 10**8)),
        ),
    ]
)


@st.composite
def deep_searches(draw: st.DrawFn) -> Search:
    schedules = draw(st.sampled_from([("interleaved",), ("1f1b", "gpipe", "zero_bubble")]))
    batch, work = draw(st.sampled_from([4, 8, 16])), draw(WORKS)
    runtime = draw(st.sampled_from([HETCOMM, Runtime()]))
    memory = draw(st.sampled_from([1e12, 2.5e9, 2.2e9]))
    processors = draw(st.sampled_from([None, None, 2.0]))
    slower = draw(st.sampled_from([None, {"head": 50.0}, {"block": 20.0}]))
    return search_of(
        draw(CROWDED), batch, memory, runtime, schedules, (1,), work, DEEP, (2, 3), processors,
        slower,
    )  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(st.one_of(searches(), deep_searches()), st.randoms(use_true_random=False))
def test_no_layout_is_faster_than_the_bounds_of_its_nodes(root: Search, random: Random) -> None:
    problem = root.terms.problem
    for _ in range(10):
        nodes, above = list(root.roots()), []
        while nodes:
            node = random.choice(nodes)
            above.append(node)
            candidate = node.leaf
            if candidate is not None and (candidate.counts or random.random() < 0.2):
                layout = candidate.layout(candidate.division())
                if fitting(problem, layout, root.settings_space.levels) is not None:
                    seconds = predicted(problem, layout).seconds
                    for each in above:
                        assert each.bound <= seconds * (1 + 1e-9), (type(each), layout)
                    for each in above:  # none leaves out the layout
                        if isinstance(each, OfShape | OfDivisions):
                            assert list(each.open(seconds * (1 + 1e-9)))
                break
            nodes = list(node.open(INFINITE))


@settings(deadline=None, max_examples=20)
@given(deep_searches(), st.randoms(use_true_random=False))
def test_a_setting_opens_into_all_divisions(root: Search, random: Random) -> None:
    shapes = [node for node in _descend(root.roots(), random) if isinstance(node, OfSettings)]
    for node in shapes[:3]:
        divisions, nodes = [], list(node.open(INFINITE))
        while nodes:
            opened = nodes.pop()
            if opened.leaf is not None:
                divisions.append(opened.leaf.counts)
            nodes += opened.open(INFINITE)
        stages, layers = len(node.leaf.shape.stages), root.space.layers
        chunks = node.leaf.settings.chunks
        expected = {
            tuple(b - a for a, b in pairwise((0, *ends, layers)))
            for ends in combinations(range(1, layers), stages - 1)
        }
        expected = {counts for counts in expected if min(counts) >= chunks}
        assert len(divisions) == len(set(divisions))
        assert set(divisions) <= expected
        if root.terms.problem.profile.devices["A100"].memory == 1e12:
            assert set(divisions) == (expected if stages > 1 else set())


def _descend(nodes, random: Random):  # type: ignore[no-untyped-def]
    """Nodes on random ways down to settings, without limits of memory."""
    nodes = list(nodes)
    for node in random.sample(nodes, min(6, len(nodes))):
        while node.leaf is None:
            opened = list(node.open(INFINITE))
            if not opened:
                break
            node = random.choice(opened)
        yield node


def test_slow_links_and_slow_devices_lose_no_layout() -> None:
    """The first bounds are far from the step: by sums on slow links, or by a slow first stage."""
    slow = cluster_of({"A100": 5}, ranks=1, rate=10**8)
    frugal = search_of(slow, 5, memory=2e9 + 12 * MODEL.total, schedules=("1f1b", "gpipe"))
    frugal = replace(frugal, space=replace(frugal.space, every_rank=True))
    assert search(frugal, tolerance=0.5).best
    two = cluster_of({"A100": 1, "V100": 1}, ranks=1)
    unlike = search_of(two, 8, schedules=("1f1b", "interleaved"), slower={"block": 400.0})
    unlike = replace(unlike, space=replace(unlike.space, every_rank=True))
    assert search(unlike, tolerance=0.5).best


def test_known_layouts_are_kept_where_no_other_is_faster() -> None:
    root = search_of(cluster_of({"A100": 2}, ranks=1, rate=10**9), 4)
    best = search(root, tolerance=0.0).best
    again = search(root, known=best[:1], seconds=1e-9)
    assert again.best[0] == best[0]


def test_tensor_degrees_divide_the_heads_of_keys_and_values() -> None:
    cluster = cluster_of({"A100": 2}, ranks=2, rate=10**9)
    grouped = search_of(cluster, 4, model=replace(MODEL, key_value_heads=1))
    assert search_of(cluster, 4).terms.block_seconds(0, 2, 1, 1) is not None
    assert grouped.terms.block_seconds(0, 1, 1, 1) is not None
    assert grouped.terms.block_seconds(0, 2, 1, 1) is None


def test_levels_that_divide_a_data_group_into_unequal_parts_are_left_out() -> None:
    nics = (Nic(10**10, 10**10),)
    hosts = tuple(Host(f"h{n}", n, nics, device="A100") for n in (2, 1))
    problem = search_of(Cluster(hosts), 3).terms.problem
    stage = Stage(((0, MODEL.layers),), tuple(Replica((rank,)) for rank in range(3)))
    for level, fits in (("rank", True), ("host", False), ("cluster", True)):
        layout = Layout((stage,), 3, 1, gradients=level, optimizer_states=level)
        assert (fitting(problem, layout, ("rank", "host", "cluster")) is not None) == fits
