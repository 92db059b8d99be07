"""Profiles of measured speeds: their text, their topologies, their use by the cost model."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from generated import GBIT, topology_of
from hypothesis import given
from hypothesis import strategies as st

from hetcomm import _core
from hetcomm._core import Collective, CostParameters, Planner, Profile, Spec

HEADING = "hetcomm profile 1"
HOST = "host name=h0 ranks=2 cores=2 nics=ethernet:125000000 bandwidth=0"
ISLAND = "island members=2 ranks=2 cores=2"
MEMORY = "memory bandwidth=20000000000 step=300"
CURVE = "16=2000 1024=3000 1048576=50000"
NAMES = [collective.name for collective in _core.profiled_collectives()]


def text_of(*, curve: str = CURVE, island: str = ISLAND, hosts: list[str] | None = None) -> str:
    curves = [f"{name} {curve}" for name in NAMES]
    return "\n".join([HEADING, *(hosts or [HOST]), island, *curves, MEMORY])


def parameters_of(text: str) -> CostParameters:
    return CostParameters(Profile(text))


def two_ranks(cores: int = 2) -> _core.Topology:
    return topology_of([2], cores=cores)


def all_reduce_time(text: str, size: int) -> int:
    topology = two_ranks()
    plans = Planner(topology).plan_all(Spec(Collective.all_reduce, count=size // 4))
    total: int = _core.predict(topology, plans, parameters_of(text)).total
    return total


def test_a_profile_survives_writing_and_reading() -> None:
    profile = Profile(text_of())
    again = Profile(str(profile))
    assert str(again) == str(profile) and again.digest() == profile.digest()
    assert Profile(f"# by hand\n{text_of()}  # the end\n").digest() == profile.digest()
    assert Profile(text_of(curve="16=2000 1024=3001")).digest() != profile.digest()


def test_measured_sizes_cost_the_measured_time_and_others_lie_between() -> None:
    for size, expected in ((4, 2000), (16, 2000), (1024, 3000), (520, 2500), (1 << 20, 50000)):
        assert all_reduce_time(text_of(), size) == expected, size
    # Beyond the last size the curve continues with its slope.
    assert all_reduce_time(text_of(), 2 << 20) == 50000 + 47000 * (1 << 20) // ((1 << 20) - 1024)


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_curves_never_fall(times: list[int], rng: random.Random) -> None:
    sizes = sorted(rng.sample(range(1, 1 << 40), len(times)))
    points = list(zip(sizes, sorted(times), strict=True))
    curve = " ".join(f"{size}={time}" for size, time in points)
    parameters = parameters_of(text_of(curve=curve))

    def at(size: int) -> int:
        found: int = _core.island_time(parameters, 2, 2, 2, Collective.broadcast, size)
        return found

    asked = sorted([*sizes, *(rng.randrange(1 << 41) for _ in range(20))])
    assert all(at(less) <= at(more) for less, more in pairwise(asked))
    assert all(at(size) == time for size, time in points)


@pytest.mark.parametrize("collective", _core.profiled_collectives())
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_assumed_times_never_fall(collective: Collective, cores: int) -> None:
    for members in (2, 3, 4, 16):
        times = [
            _core.island_time(CostParameters(), members, members, cores, collective, 1 << power)
            for power in range(33)
        ]
        assert all(less <= more for less, more in pairwise(times)), members


def test_an_unmeasured_island_is_priced_in_proportion() -> None:
    measured, none = parameters_of(text_of()), CostParameters()
    for size in (16, 1 << 20):
        alike = _core.island_time(none, 2, 2, 2, Collective.all_reduce, size)
        assumed = _core.island_time(none, 4, 4, 2, Collective.all_reduce, size)
        known = _core.island_time(measured, 2, 2, 2, Collective.all_reduce, size)
        found = _core.island_time(measured, 4, 4, 2, Collective.all_reduce, size)
        assert found == known * assumed // alike
        for cores in (1, 3, 4):  # also on other numbers of processors
            assumed = _core.island_time(none, 4, 4, cores, Collective.all_reduce, size)
            found = _core.island_time(measured, 4, 4, cores, Collective.all_reduce, size)
            assert found == known * assumed // alike


def test_an_island_on_as_many_processors_is_the_nearest() -> None:
    more = [f"{name} 16=70000 1048576=900000" for name in NAMES]
    lines = text_of().splitlines()
    both = [*lines[:-1], "island members=4 ranks=4 cores=4", *more, lines[-1]]
    both[1] = both[1].replace("ranks=2 cores=2", "ranks=4 cores=4")
    measured, none = parameters_of("\n".join(both)), CostParameters()

    def time(by: CostParameters, members: int, ranks: int, cores: int) -> int:
        found: int = _core.island_time(by, members, ranks, cores, Collective.all_reduce, 16)
        return found

    assert time(measured, 4, 4, 2) == 2000 * time(none, 4, 4, 2) // time(none, 2, 2, 2)
    assert time(measured, 2, 2, 4) == 70000 * time(none, 2, 2, 4) // time(none, 4, 4, 4)


@pytest.mark.parametrize("island", [(0, 2, 2), (2, 1, 2), (2, 2, 0), (2, 2, -1)])
def test_an_impossible_island_is_rejected(island: tuple[int, int, int]) -> None:
    with pytest.raises(_core.InvalidArgumentError, match="island_time: expected members from 1"):
        _core.island_time(CostParameters(), *island, Collective.all_reduce, 16)


def test_uneven_shares_cost_between_the_even_and_the_single_one() -> None:
    lines = text_of().splitlines()
    lines[3 + NAMES.index("reduce")] = "reduce 16=9000 1048576=9000"
    lines[3 + NAMES.index("reduce_scatter")] = "reduce_scatter 16=1000 1048576=1000"
    parameters = parameters_of("\n".join(lines))
    topology = two_ranks()

    def cost(first: int) -> int:
        spec = Spec(Collective.reduce_scatter, count=500)
        plans = Planner(topology).plan_all(spec)
        for plan in plans:
            step = plan.steps[0]
            start, pieces = 0, step.pieces
            for piece, count in zip(pieces, (first, 1000 - first), strict=True):
                piece.source = _core.Range(piece.source.space, 4 * start, count)
                piece.target = _core.Range(piece.target.space, 0, count)
                start += count
            step.pieces = pieces
            plan.steps = [step]
        total: int = _core.predict(topology, plans, parameters).total
        return total

    assert cost(500) == 1000 and cost(1000) == 9000
    assert cost(750) == cost(250) == 5000


def test_measured_links_replace_reported_rates() -> None:
    hosts = [
        f"host name=h{i} ranks=1 cores=64 nics=ethernet:125000000 bandwidth={bandwidth}"
        for i, bandwidth in enumerate((100_000_000, 50_000_000))
    ]
    text = "\n".join([HEADING, *hosts, "message ethernet 8=5000 65536=1305000", MEMORY])
    topology = topology_of([1, 1])

    def cost(size: int) -> _core.Cost:
        int8 = _core.Dtype.int8
        send = _core.message_plan(topology, 0, Collective.send, 1, int8, size)
        recv = _core.message_plan(topology, 1, Collective.recv, 0, int8, size)
        recv.spec = send.spec
        return _core.predict(topology, [send, recv], parameters_of(text))

    assert cost(10**6).bridge == 10**6 * 1000 // 50  # the rate of the slower end
    for size, expected in ((8, 5000), (65536, 65536 * 1000 // 50)):
        assert expected <= cost(size).total <= expected + 301


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (lambda lines: [], 0, 'expected "hetcomm profile 1", got nothing'),
        (lambda lines: ["hetcomm profile 2"], 1, "something else"),
        (lambda lines: [*lines[:1], "host name=h0 ranks=2"], 2, "expected 6 words, got 3"),
        (lambda lines: [lines[0], lines[1].replace("cores=2", "cores=two")], 2, '"two"'),
        (lambda lines: [lines[0], lines[1].replace("cores", "core")], 2, "expected cores=..."),
        (lambda lines: [*lines[:2], lines[3]], 3, "an island before its curves"),
        (lambda lines: [*lines[:4], lines[3]], 5, "once, got "),
        (lambda lines: [*lines[:3], "all_reduce 16=2000"], 4, "at least 2"),
        (lambda lines: [*lines[:3], "all_reduce 16=20 16=30"], 4, f'from 17 to {10**15}, got "16"'),
        (lambda lines: [*lines[:3], "all_reduce 16=20 64=10"], 4, f'from 20 to {10**15}, got "10"'),
        (lambda lines: [*lines[:3], f"all_reduce 1=20 {2**63 - 1}=30"], 4, "to 1000000000000000"),
        (lambda lines: [*lines[:3], "all_reduce 16=20 64"], 4, "BYTES=NANOSECONDS"),
        (lambda lines: [*lines[:4], lines[-1]], 5, "reduce_scatter of the island of 2"),
        (lambda lines: lines[:-1], 11, "expected memory, got the end"),
        (lambda lines: [lines[0], lines[-1]], 2, "expected a host"),
        (lambda lines: [*lines, "message token 8=1 16=2"], 13, 'a fabric, got "token"'),
        (lambda lines: [*lines, "barrier 8=1 16=2"], 13, '"barrier"'),
    ],
)  # fmt: skip
def test_a_malformed_text_is_rejected_with_its_line(
    change: Callable[[list[str]], list[str]], line: int, said: str
) -> None:
    with pytest.raises(_core.InvalidArgumentError) as refused:
        Profile("\n".join(change(text_of().splitlines())), "some.profile")
    message = str(refused.value)
    assert f"cannot read the profile some.profile, line {line}: expected" in message
    assert said in message and "run hetcomm tune again" in message


@pytest.mark.parametrize(
    "topology",
    [
        topology_of([3], cores=2),
        topology_of([2], cores=4),
        topology_of([2], cores=2, bandwidth=10 * GBIT),
        topology_of([1, 1], cores=2),
    ],
    ids=["ranks", "cores", "nics", "hosts"],
)
def test_a_profile_of_another_topology_is_rejected(topology: _core.Topology) -> None:
    plans = Planner(topology).plan_all(Spec(Collective.all_reduce, count=4))
    for refused in (
        lambda: _core.predict(topology, plans, parameters_of(text_of())),
        lambda: Profile(text_of()).match_hosts(topology),
    ):
        with pytest.raises(_core.InvalidArgumentError) as error:
            refused()
        assert "expected 1 hosts or part of them, 2 ranks on 2 processors" in str(error.value)
        assert "got " in str(error.value) and "run hetcomm tune" in str(error.value)


def test_parts_of_the_measured_cluster_are_priced() -> None:
    hosts = [
        f"host name=h{i} ranks={ranks} cores=64 nics=ethernet:125000000 bandwidth=0"
        for i, ranks in enumerate((2, 4, 2))
    ]
    profile = Profile(text_of(hosts=hosts, island="island members=2 ranks=2 cores=64"))
    assert profile.match_hosts(topology_of([2, 4, 2])) == [0, 1, 2]
    assert profile.match_hosts(topology_of([4, 2, 1])) == [1, 0, 2]  # by what they are, not by name
    assert profile.match_hosts(topology_of([1])) == [0]
    with pytest.raises(_core.InvalidArgumentError, match="another topology"):
        profile.match_hosts(topology_of([4, 4]))


def bound_ranks(count: int) -> list[_core.RankInfo]:
    """Ranks of one host, each on a processor of its own, and near one of two NICs."""
    infos = topology_of([count], cores=1).ranks
    for rank, info in enumerate(infos):
        info.processors = [rank]
        nics = info.nics
        nics[0].name = f"eth{rank % 2}"
        nics[0].bandwidth = (rank % 2 + 1) * GBIT
        info.nics = nics
    return infos


def test_groups_of_bound_ranks_are_priced() -> None:
    infos = bound_ranks(4)
    host = _core.profile_host(_core.Topology(infos), 0)
    assert (host.ranks, host.cores, host.nics.count(",")) == (4, 4, 1)
    line = f"host name=h0 ranks=4 cores=4 nics={host.nics} bandwidth=0"
    profile = Profile(text_of(hosts=[line], island="island members=4 ranks=4 cores=4"))
    for ranks in ([0, 1], [0, 2], [1, 2, 3], [3]):
        group = _core.Topology([infos[rank] for rank in ranks])
        assert profile.match_hosts(group) == [0]
        plans = Planner(group, parameters=CostParameters(profile)).plan_all(
            Spec(Collective.all_reduce, count=4)
        )
        assert _core.predict(group, plans, CostParameters(profile)).total > 0
    for part in (bound_ranks(6)[:5], bound_ranks(4)[:2]):  # more ranks, another NIC
        nics = part[0].nics
        nics[0].bandwidth = 10 * GBIT
        part[0].nics = nics
        with pytest.raises(_core.InvalidArgumentError, match="another topology"):
            profile.match_hosts(_core.Topology(part))


def test_parts_of_different_hosts_find_a_host_each() -> None:
    hosts = [
        f"host name=x{i} ranks=4 cores={cores} nics=ethernet:125000000 bandwidth=0"
        for i, cores in enumerate((8, 4, 2))
    ]
    profile = Profile(text_of(hosts=hosts, island="island members=4 ranks=4 cores=4"))

    def places(cores: list[int]) -> list[int]:
        infos = topology_of([2] * len(cores)).ranks
        for rank, info in enumerate(infos):
            info.cores = cores[rank // 2]
        found: list[int] = profile.match_hosts(_core.Topology(infos))
        return found

    assert places([2, 2, 2]) == [0, 1, 2]
    assert sorted(places([1, 3, 5])) == [0, 1, 2] and places([1, 3, 5])[2] == 0
    assert places([2, 4, 8]) == [2, 1, 0]
    with pytest.raises(_core.InvalidArgumentError, match="another topology"):
        places([3, 3, 3])


def test_the_choice_follows_the_profile() -> None:
    """Slow messages favour algorithms with few messages, whatever the constants say."""
    topology = topology_of([1, 1, 1, 1])
    spec = Spec(Collective.all_reduce, count=1 << 20)
    hosts = [
        f"host name=h{i} ranks=1 cores=64 nics=ethernet:125000000 bandwidth=10000000000"
        for i in range(4)
    ]

    def chosen(latency: int) -> str:
        message = f"message ethernet 8={latency} 1024={latency}"
        text = "\n".join([HEADING, *hosts, message, MEMORY])
        planner = Planner(topology, parameters=parameters_of(text))
        name: str = planner.choose(spec).algorithm.name
        return name

    assert chosen(10**9) == "hierarchical_direct" != chosen(0)
