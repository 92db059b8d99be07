"""Zones nest by their labels, and plans send less over their uplinks."""

import itertools
import random
from collections import Counter

import pytest
from generated import (
    COLLECTIVES,
    GBIT,
    IN_PLACE,
    applicable,
    devices,
    random_spec,
    random_topology,
    topology_of,
    with_devices,
    with_zones,
)

from hetcomm import _core
from hetcomm._core import Collective, CostParameters, Plan, Planner, SelectionTable, Spec, Topology

NESTED = "hierarchical_nested"


def in_zones(topology: Topology, labels: list[str]) -> Topology:
    """Host i has label i."""
    infos = topology.ranks
    for label, members in zip(labels, topology.hosts, strict=True):
        for rank in members:
            infos[rank].zone = label
    return Topology(infos)


def racks(sizes: list[int], number: int, rate: str = "@1gbit") -> Topology:
    """Hosts of 10 Gbit/s in so many equal zones, one after the other."""
    each = len(sizes) // number
    hosts = topology_of(sizes, 10 * GBIT)
    return in_zones(hosts, [f"r{host // each}{rate}" for host in range(len(sizes))])


def over_uplinks(topology: Topology, plans: list[Plan], level: int = 0) -> Counter[tuple[str, str]]:
    """[("out" or "in", zone)] -> elements of messages."""
    zones = topology.zones[level]
    zone_of = {host: zone.name for zone in zones for host in zone.hosts}
    counted: Counter[tuple[str, str]] = Counter()
    for plan in plans:
        own = zone_of[topology.host_of(plan.rank)]
        for step in plan.steps:
            if step.kind.name not in ("send", "recv"):
                continue
            if zone_of[topology.host_of(step.peer)] == own:
                continue
            if step.kind.name == "send":
                counted["out", own] += step.sources[0].count
            else:
                counted["in", own] += step.target.count
    return counted


def test_labels_nest() -> None:
    labels = ["paris@1gbit/r1", "paris@1gbit/r2@2.5gbit", "oslo/r1", "paris@1gbit/r1"]
    topology = in_zones(topology_of([1, 2, 1, 1]), labels)
    wide, narrow = (
        [(zone.name, zone.uplink, zone.hosts) for zone in zones] for zones in topology.zones
    )
    assert wide == [("paris", GBIT, [0, 1, 3]), ("oslo", 0, [2])]
    assert narrow == [
        ("paris/r1", 0, [0, 3]),
        ("paris/r2", 312_500_000, [1]),
        ("oslo/r1", 0, [2]),
    ]
    assert topology_of([1, 2]).zones == []
    alike = topology.without_speeds()
    for one in (alike, Topology(alike.ranks)):
        assert [zone.uplink for zones in one.zones for zone in zones] == [0] * 5
    assert topology.fingerprint != in_zones(topology_of([1, 2, 1, 1]), ["p/r"] * 4).fingerprint


@pytest.mark.parametrize(
    ("labels", "rank", "text"),
    [
        (["a", "a/b"], 2, "expected 1 zones as on rank 0 on h0, got 2; name a zone of every level"),
        (["a", ""], 2, "got 0"),
        (
            ["a@1gbit", "a@2gbit"],
            2,
            "expected the uplink of a as in HETCOMM_ZONE=a@1gbit of rank 0",
        ),
        (["a@1gbit", "a"], 2, "a zone has one uplink"),
        (["a//b", "c"], 0, 'such as paris@1gbit/rack3, got ""'),
        (["a/", "c"], 0, "a slash at the end"),
        (["/a", "c"], 0, 'got ""'),
        (["a b", "c"], 0, 'got "a b"'),
        (["a@", "c"], 0, 'got "a@"'),
        (["a@1", "c"], 0, 'got "a@1"'),
        (["a@0gbit", "c"], 0, 'got "a@0gbit"'),
        (["a@-1gbit", "c"], 0, 'got "a@-1gbit"'),
        (["a@nangbit", "c"], 0, 'got "a@nangbit"'),
        (["a@1e9gbit", "c"], 0, 'got "a@1e9gbit"'),
        (["a@1gbit@2gbit", "c"], 0, "rates from 1mbit to 1000gbit"),
        (["a@.5gbit", "c"], 0, 'got "a@.5gbit"'),
        (["a@1.gbit", "c"], 0, 'got "a@1.gbit"'),
        (["a@64kbit", "c"], 0, "rates from 1mbit"),
        (["a@1001gbit", "c"], 0, "to 1000gbit"),
        (["./..", "c"], 0, 'got "."'),
        (["-a", "c"], 0, "begin names with a letter or digit"),
        (["@1gbit", "c"], 0, "got"),
        (["a" * 64, "c"], 0, "begin names with a letter"),
        (["a/b/c/d/e", "c"], 0, "expected at most 4 zones, got 5"),
    ],
)
def test_labels_that_contradict_are_refused(labels: list[str], rank: int, text: str) -> None:
    with pytest.raises(_core.InvalidArgumentError) as caught:
        in_zones(topology_of([2, 1]), labels)
    assert text in str(caught.value)
    assert caught.value.rank == rank
    assert f"HETCOMM_ZONE={labels[rank // 2]} of rank {rank} on h{rank // 2}: " in str(caught.value)


def test_a_host_in_two_zones_is_refused() -> None:
    infos = topology_of([2, 1]).ranks
    for info, zone in zip(infos, ("a", "b", "a"), strict=True):
        info.zone = zone
    with pytest.raises(_core.InvalidArgumentError, match='"a" as on rank 0 of the same host, got'):
        Topology(infos)


@pytest.mark.parametrize("seed", range(60))
def test_nested_plans_are_right_and_a_rank_builds_its_own(seed: int) -> None:
    rng = random.Random(seed)
    topology = with_zones(rng, random_topology(rng, 20))
    if rng.random() < 0.5:
        topology = with_devices(rng, topology)
    for collective in COLLECTIVES:
        spec = random_spec(rng, collective, len(topology))
        if NESTED not in {algorithm.name for algorithm in applicable(spec, topology)}:
            continue
        plans = Planner(topology).plan_all(spec, NESTED)
        assert not _core.check(topology, plans)
        planner = Planner(topology, SelectionTable(f"{collective.name}:0-inf={NESTED}"))
        for rank, plan in enumerate(plans):
            own = planner.plan(spec, rank)
            assert (own.steps, own.scratch_bytes) == (plan.steps, plan.scratch_bytes)


@pytest.mark.parametrize(("sizes", "number"), [([1] * 6, 2), ([2] * 12, 3), ([3, 1, 2, 2], 2)])
def test_each_element_crosses_an_uplink_once(sizes: list[int], number: int) -> None:
    topology = racks(sizes, number)
    zones, n, count = topology.zones[0], len(topology), 96_000
    members = {zone.name: sum(len(topology.hosts[host]) for host in zone.hosts) for zone in zones}

    def crossing(collective: Collective) -> Counter[tuple[str, str]]:
        spec = Spec(collective, count=count)
        return over_uplinks(topology, Planner(topology).plan_all(spec, NESTED))

    reduced = crossing(Collective.all_reduce)
    gathered, scattered = crossing(Collective.all_gather), crossing(Collective.reduce_scatter)
    sent, collected = crossing(Collective.broadcast), crossing(Collective.reduce)
    home = zones[0].name
    assert sum(reduced.values()) == 2 * 2 * (number - 1) * count
    assert sent["out", home] + collected["in", home] > 0
    for zone, size in members.items():
        foreign, own = (n - size) * count, (number - 1) * size * count
        assert (gathered["in", zone], gathered["out", zone]) == (foreign, own)
        assert (scattered["out", zone], scattered["in", zone]) == (foreign, own)
        assert reduced["in", zone] == pytest.approx(2 * (number - 1) * count / number, rel=0.01)
        assert sent["in", zone] == collected["out", zone] == (0 if zone == home else count)


def test_chains_and_rings_cross_an_uplink_once() -> None:
    """Whatever the order of hosts."""
    labels = ["a", "b", "a", "c", "b", "a", "c", "b"]
    topology, count = in_zones(topology_of([1] * 8), labels), 8000
    for collective, root in itertools.product(("broadcast", "reduce"), range(8)):
        spec = Spec(Collective.__members__[collective], count=count, root=root)
        counted = over_uplinks(topology, Planner(topology).plan_all(spec, "hierarchical_chain"))
        assert sum(counted.values()) == 2 * 2 * count
    spec = Spec(Collective.all_reduce, count=count)
    counted = over_uplinks(topology, Planner(topology).plan_all(spec, "hierarchical_ring"))
    assert max(counted.values()) <= 2 * count


def test_many_small_zones_enter_a_large_one_by_all_its_islands() -> None:
    labels = ["large"] * 8 + [f"small{i}" for i in range(8)]
    topology = in_zones(topology_of([1] * 16), labels)
    spec = Spec(Collective.all_gather, count=1 << 16)
    for plan in Planner(topology).plan_all(spec, NESTED)[:8]:
        received = [step for step in plan.steps if step.kind.name == "recv" and step.peer >= 8]
        assert sum(step.target.count for step in received) == spec.count


@pytest.mark.parametrize("order", ["block", "interleaved", "shuffled"])
def test_blocks_take_turns_at_the_islands_of_a_zone(order: str) -> None:
    zones = [rank // 4 if order == "block" else rank % 4 for rank in range(16)]
    if order == "shuffled":
        random.Random(5).shuffle(zones)
    topology = in_zones(topology_of([1] * 16), [f"z{zone}" for zone in zones])
    for collective, kind in (("all_gather", "recv"), ("reduce_scatter", "send")):
        spec = Spec(Collective.__members__[collective], count=1 << 16)
        for plan in Planner(topology).plan_all(spec, NESTED):
            moved = [step for step in plan.steps if step.kind.name == kind]
            foreign = [
                (s.target if kind == "recv" else s.sources[0]).count
                for s in moved
                if zones[s.peer] != zones[plan.rank]
            ]
            assert sum(foreign) == 3 * spec.count


def test_a_slow_uplink_has_a_small_share() -> None:
    labels = ["a@5mbit"] * 3 + ["b@1gbit"] * 3 + ["c@1gbit"] * 3
    topology, count = in_zones(topology_of([1] * 9), labels), 90_000
    plans = Planner(topology).plan_all(Spec(Collective.all_reduce, count=count), NESTED)
    counted = over_uplinks(topology, plans)
    assert counted["out", "a"] == counted["in", "a"] == pytest.approx(count, rel=0.02)


def test_zones_of_many_sizes_have_few_exchanges() -> None:
    """A rank has 5.6 times as many steps with zones of 4 to 11 hosts as with zones of 8."""
    steps = []
    for sizes in ([8] * 16, [*range(4, 12)] * 2):
        labels = [f"z{zone}@10gbit" for zone, size in enumerate(sizes) for _ in range(size)]
        topology = in_zones(topology_of([1] * len(labels), 10 * GBIT), labels)
        table = SelectionTable(f"all_reduce:0-inf={NESTED}")
        spec = Spec(Collective.all_reduce, count=(1 << 20) // 4)
        steps.append(len(Planner(topology, table).plan(spec, 0).steps))
    assert steps[1] < 6.2 * steps[0], steps


def test_the_slowest_of_many_kinds_of_zones_counts() -> None:
    labels = [
        f"z{zone}" + ("@100mbit" if zone == 19 else "")
        for zone in range(20)
        for _ in range(zone + 1)
    ]
    topology = in_zones(topology_of([1] * len(labels)), labels)
    for name in ("all_reduce", "all_gather"):
        count = (1 << 22) // (1 if name == "all_reduce" else len(labels))
        spec = Spec(Collective.__members__[name], count=count)
        assert Planner(topology).choose(spec).algorithm.name == NESTED


def test_a_small_zone_behind_a_slow_uplink_counts() -> None:
    """It has 4 of 44 hosts, and more of its uplink for each."""
    labels = ["b@500mbit"] * 40 + ["a@100mbit"] * 4
    topology = in_zones(topology_of([1] * 44, 10 * GBIT), labels)
    spec = Spec(Collective.all_reduce, count=1 << 20)
    wire = 1e9 * (4 << 20) / (GBIT // 10)
    assert wire < Planner(topology).cost(spec, NESTED).total < 1.5 * wire


def test_one_zone_around_all_hosts_changes_no_plan() -> None:
    plain = topology_of([1] * 4, 10 * GBIT)
    spec = Spec(Collective.all_reduce, count=1 << 20)
    plans = [
        [plan.steps for plan in Planner(topology).plan_all(spec)]
        for topology in (plain, in_zones(plain, ["paris@100mbit"] * 4))
    ]
    assert plans[0] == plans[1]


def test_a_price_needs_few_ranks() -> None:
    labels = [f"room{host // 64}@40gbit/rack{host // 8}@20gbit" for host in range(512)]
    topology = in_zones(topology_of([8] * 512, 10 * GBIT), labels)
    assert len(Planner(topology).representatives(Spec(Collective.all_reduce, count=1 << 20))) < 100


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (topology_of([1] * 4), "needs zones; HETCOMM_ZONE names those of a host"),
        (racks([1] * 4, 1), "needs two zones or more"),
        (racks([1] * 4, 4), "needs two zones or more, one of them with several islands"),
        (
            in_zones(devices(["a/nvidia", "b/nvidia", "c/amd", "d/cpu"]), ["x", "y", "x", "x"]),
            "needs islands inside zones; island 0 is in x and in y",
        ),
    ],
)
def test_where_zones_do_not_help_the_reason_is_said(topology: Topology, text: str) -> None:
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        spec = Spec(Collective.__members__[name], count=100)
        choice = Planner(topology).choose(spec)
        (reason,) = (c.rejected for c in choice.candidates if c.algorithm.name == NESTED)
        assert text in reason


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_slow_uplinks_are_spared(name: str) -> None:
    """The chosen plan takes the time of the uplink, at most a fifth more."""
    count = (32 << 20) // 4
    for sizes in ([1] * 8, [4] * 24):
        topology = racks(sizes, 2)
        n = len(topology)
        spec = Spec(Collective.__members__[name], count=count // (1 if name in IN_PLACE else n))
        assert Planner(topology).choose(spec).algorithm.name == NESTED
        crossing = 4 * spec.count * (1 if name == "all_reduce" else n / 2)
        cost = Planner(topology).cost(spec, NESTED)
        assert 1e9 * crossing / GBIT <= cost.total < 1.2e9 * crossing / GBIT


def test_without_slow_uplinks_zones_cost_nothing() -> None:
    plain = topology_of([1] * 16, 10 * GBIT)
    labelled = in_zones(plain, [f"r{host // 4}" for host in range(16)])
    for collective, power in itertools.product(COLLECTIVES, (3, 16, 24)):
        whole = collective.name in IN_PLACE
        spec = Spec(collective, count=(1 << power) // 4 // (1 if whole else 16) or 1)
        if collective.name == "barrier":
            spec = Spec(collective)
        costs = [Planner(topology).cost(spec).total for topology in (plain, labelled)]
        assert costs[1] <= costs[0]


def test_estimates_of_zones_are_near_replays() -> None:
    rng = random.Random(20261201)
    ratios, regrets = [], []
    for _ in range(25):
        number, hosts, size = rng.choice((2, 3, 4)), rng.randint(2, 6), rng.choice((1, 2, 4))
        topology = racks([size] * number * hosts, number, rng.choice(("", "@1gbit", "@10gbit")))
        for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
            count = (1 << rng.choice((3, 12, 16, 20, 24))) // 4
            whole = name in IN_PLACE
            spec = Spec(
                Collective.__members__[name],
                count=count if whole else max(1, count // len(topology)),
            )
            totals = []
            for replayed in (0, 10**6):
                parameters = CostParameters()
                parameters.replayed_ranks = replayed
                choice = Planner(topology, parameters=parameters).choose(spec)
                totals.append(
                    {c.algorithm.name: c.cost.total for c in choice.candidates if not c.rejected}
                )
            estimated, replay = totals
            chosen = min(estimated, key=estimated.__getitem__)
            ratios += [estimated[one] / replay[one] for one in replay]
            regrets.append((replay[chosen] / min(replay.values()), str(spec), chosen))
    ratios.sort()
    regrets.sort(reverse=True)
    assert ratios[0] > 0.5
    assert ratios[-1] < 2
    assert 0.95 < ratios[len(ratios) // 2] < 1.1
    assert regrets[len(regrets) // 10][0] < 1.06, regrets[:20]
    assert regrets[0][0] < 1.4, regrets[:5]


@pytest.mark.parametrize("level", [0, 1])
def test_native_libraries_share_the_uplinks(level: int) -> None:
    """A ring of an island over two zones leaves each zone once."""
    places = [f"h{host}/{'nvidia' if host < 4 else 'amd'}" for host in range(8)]
    hosts = devices([place for place in places for _ in range(2)], 100 * GBIT, "roce")
    label = ("z{}@8gbit/r{}", "z{}/r{}@8gbit")[level]
    zoned = in_zones(hosts, [label.format(host // 2, host // 2) for host in range(8)])
    count = (64 << 20) // 4
    spec = Spec(Collective.all_gather, count=count // len(zoned))
    for replayed in (0, 64):
        parameters = CostParameters()
        parameters.replayed_ranks = replayed
        fast, slow = (
            Planner(one, parameters=parameters).cost(spec).total for one in (hosts, zoned)
        )
        # A ring leaves each zone with half of the buffer.
        assert slow > fast
        assert slow > 1e9 * (32 << 20) / (8 * GBIT)


@pytest.mark.parametrize(
    "labels",
    [
        ["a"] * 8 + [*"bcdefghi"],
        ["a"] * 3 + ["b"] * 5,
        ["a", "b"] * 4,
        ["a/r", "a/s", "b/r", "b/s"] * 2,
        ["a"] * 7 + ["b"],
    ],
    ids="-".join,
)
@pytest.mark.parametrize("size", [1, 3])
def test_scratch_of_nested_plans_is_bounded(labels: list[str], size: int) -> None:
    topology = in_zones(topology_of([size] * len(labels), 10 * GBIT), labels)
    for algorithm in (one for one in _core.algorithms() if one.name == NESTED):
        for gibibytes in (1, 8):
            whole = algorithm.collective.name in IN_PLACE
            ranks = 1 if whole else len(topology)
            spec = Spec(algorithm.collective, count=(gibibytes << 28) // ranks)
            plans = Planner(topology).plan_all(spec, NESTED)
            assert max(plan.scratch_bytes for plan in plans) <= 64 << 20, (algorithm, gibibytes)
