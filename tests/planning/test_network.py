"""Times of transfers and collectives: curves, and hetcomm's own plans."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import network

import hetcomm
from hetcomm import _core
from hetcomm.emulate import load
from hetcomm.explain import islands_of, topology_of
from hetcomm.explain_plan import explanation, planner_of
from hetcomm.plan import Curve, Curves, Place, PlannedNetwork
from hetcomm.plan.prediction.links import links_of
from hetcomm.plan.prediction.network import levels_of

GH96 = Curve(4, -0.65351, 11.426, 45.25, 92.5519)  # of bench/oracles/sailor/network.json


@settings(deadline=None)
@given(st.floats(1, 1e10), st.floats(1, 1e10))
def test_no_message_is_slower_than_a_longer_one(a: float, b: float) -> None:
    if a > b:
        a, b = b, a
    assert 0 < GH96.seconds(a) <= GH96.seconds(b)


def test_a_curve_gives_each_flow_its_share() -> None:
    x = 4.0  # log2 of 16 MB
    rate = (-0.65351 * x * x + 11.426 * x + 45.25) / 4 * 1e9
    assert GH96.seconds(16e6) == pytest.approx(16e6 / rate)
    assert GH96.seconds(0) == 0


def test_flows_share_the_nics_of_their_hosts() -> None:
    four = network(4, per_host=2)  # 1 GB/s for all flows of a host
    assert four.transfer([(0, 2)], 10**9) == pytest.approx(1.0)
    assert four.transfer([(0, 2), (1, 3)], 10**9) == pytest.approx(2.0)
    assert four.transfer([(0, 2), (3, 1)], 10**9) == pytest.approx(1.0)  # one in each direction
    assert four.transfer([(0, 1)], 10**9) == pytest.approx(0.01)


def test_a_curve_of_more_flows_is_no_slower_than_one_of_fewer() -> None:
    key = ("", "a")
    curves = {(key, key): [Curve(4, 0, 0, 2.8, 2.8), Curve(8, 0, 0, 0.1, 0.1)]}
    places = [Place("one", "a")] * 8 + [Place("two", "a")] * 8
    pairs = [(i, 8 + i) for i in range(8)]
    seconds = Curves(places, curves, {}).transfer(pairs, 10**8)
    assert seconds == pytest.approx(8 * 1e8 / 2.8e9)


@pytest.mark.parametrize(("name", "rounds"), [("all_reduce", 2), ("all_gather", 1)])
def test_collectives_are_rings(name: str, rounds: int) -> None:
    seconds = network(4).collective(name, [[0, 1, 2, 3]], 4 * 10**9)
    assert seconds == pytest.approx(rounds * 3 * 1.0)
    assert network(4).collective(name, [[0]], 10**9) == 0


def test_groups_that_share_hosts_share_their_nics() -> None:
    four = network(4, per_host=2)
    alone = four.collective("all_reduce", [[0, 2]], 10**9)
    assert four.collective("all_reduce", [[0, 2], [1, 3]], 10**9) == pytest.approx(2 * alone)


def test_islands_inside_a_host_have_faster_links() -> None:
    places = [Place("one", "a", island=f"package {rank // 2}") for rank in range(4)]
    half, full = [Curve(1, 0, 0, 50, 50)], [Curve(1, 0, 0, 200, 200)]
    paired = Curves(places, {}, {"a": half}, {"a": full})
    assert levels_of(paired, [0, 1, 2, 3], "island") == [[0, 1], [2, 3]]
    assert levels_of(paired, [0, 1, 2, 3], "host") == [[0, 1, 2, 3]]
    assert paired.transfer([(0, 1), (1, 0)], 10**9) == pytest.approx(1 / 200)
    assert paired.transfer([(0, 1), (1, 2)], 10**9) == pytest.approx(1 / 50)  # the slower one
    pairs, all_four = [[0, 1], [2, 3]], [[0, 1, 2, 3]]
    assert paired.collective("all_gather", pairs, 10**9) == pytest.approx(1 / 2 / 200)
    assert paired.collective("all_gather", all_four, 10**9) == pytest.approx(3 / 4 / 50)
    # A host without curves of its islands has the host's there.
    alike = Curves(places, {}, {"a": half})
    assert alike.transfer([(0, 1)], 10**9) == pytest.approx(1 / 50)
    with pytest.raises(hetcomm.InvalidArgumentError, match="inside a host of a"):
        Curves(places, {}, {}, {"a": full}).transfer([(1, 2)], 1)


def test_levels_part_a_group() -> None:
    four = network(4, per_host=2)
    assert levels_of(four, [0, 1, 2, 3], "host") == [[0, 1], [2, 3]]
    assert levels_of(four, [0, 1, 2, 3], "rank") == [[0], [1], [2], [3]]
    assert levels_of(four, [0, 2], "cluster") == [[0, 2]]
    with pytest.raises(hetcomm.InvalidArgumentError, match="one of rank, island"):
        levels_of(four, [0], "rack")


def planned(sizes: str = "2+2", rate: str = "1gbit") -> PlannedNetwork:
    return PlannedNetwork(topology_of(islands_of(sizes, rate, "block")))


def test_plans_are_priced_as_by_the_core() -> None:
    mine = planned()
    spec = _core.Spec(_core.Collective.all_reduce, count=1 << 18).with_codec("none")
    plans = planner_of(mine.topology).plan_all(spec)
    cost = _core.predict(mine.topology, plans, _core.CostParameters(None))
    assert mine.collective("all_reduce", [[0, 1, 2, 3]], 1 << 20) == pytest.approx(
        cost.total * 1e-9
    )


def test_long_collectives_take_the_time_of_their_bytes() -> None:
    # Two hosts exchange N bytes each way: N / rate is the least.
    seconds = planned().collective("all_reduce", [[0, 2]], 250 << 20)
    assert 2.0 <= seconds / 1.048576 <= 2.4
    assert planned().collective("all_reduce", [[0, 2]], 250 << 20, "bf16") < 0.7 * seconds


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [[2, 3], [0, 1]]])
def test_groups_over_a_zones_uplink_are_priced_apart(groups: list[list[int]]) -> None:
    """Hosts of 1 Gbit/s, in sites of 3 hosts with 250 Mbit/s. In any order of questions."""
    sites = load(Path(__file__).parents[2] / "examples/clusters/two-sites.toml")
    for order in (groups, groups[::-1]):
        mine = PlannedNetwork(topology_of(sites))
        seconds = {}
        for group in order:
            seconds[group[1] - group[0], group[0]] = mine.collective("all_reduce", [group], 1 << 23)
        assert seconds[1, 0] == pytest.approx(seconds[1, 2] / 4, rel=0.01)
        assert mine.collective("all_reduce", groups, 1 << 23) == seconds[1, 2]
        assert mine.transfer([(2, 3)], 1 << 23) == pytest.approx(seconds[1, 2], rel=0.01)


def test_groups_share_the_uplink_of_a_zone() -> None:
    sites = load(Path(__file__).parents[2] / "examples/clusters/two-sites.toml")
    mine = PlannedNetwork(topology_of(sites))
    one = mine.collective("all_reduce", [[0, 3]], 1 << 23)
    three = mine.collective("all_reduce", [[0, 3], [1, 4], [2, 5]], 1 << 23)
    assert three == pytest.approx(3 * one, rel=0.01)


def test_groups_of_plans_share_nics() -> None:
    mine = planned()
    one = mine.collective("all_reduce", [[0, 2]], 64 << 20)
    both = mine.collective("all_reduce", [[0, 2], [1, 3]], 64 << 20)
    assert both == pytest.approx(2 * one, rel=0.05)
    assert mine.transfer([(0, 2), (1, 3)], 64 << 20) > 1.9 * mine.transfer([(0, 2)], 64 << 20)
    assert mine.domain(0, "host") == mine.domain(1, "host") != mine.domain(2, "host")


def tuned(bandwidth: int, nics: str = "ethernet:125000000") -> _core.Profile:
    """A profile of hetcomm tune: two hosts of 64 processors, with this rate between them."""
    host = f"ranks=2 cores=64 nics={nics} bandwidth={bandwidth}"
    curves = [f"{each.name} 16=2000 67108864=9000000" for each in _core.profiled_collectives()]
    lines = ("hetcomm profile 1", f"host name=a {host}", f"host name=b {host}",
             "island members=2 ranks=2 cores=64", *curves, "message ethernet 16=9000 65536=9500",
             "memory bandwidth=20000000000 step=300")  # fmt: skip
    return _core.Profile("\n".join(lines))


def test_measured_links_count_for_groups_that_share_them() -> None:
    topology = topology_of(islands_of("2+2", "1gbit", "block"))
    whole, half = (PlannedNetwork(topology, tuned(rate)) for rate in (100_000_000, 50_000_000))
    one, both = (((0, 2),), ((0, 2), (1, 3)))
    for groups in (one, both):
        seconds = whole.collective("all_reduce", groups, 64 << 20)
        assert half.collective("all_reduce", groups, 64 << 20) == pytest.approx(
            2 * seconds, rel=0.1
        )
        least = len(groups) * (64 << 20) / 100_000_000
        assert seconds == pytest.approx(least, rel=0.3)
    other = PlannedNetwork(topology, tuned(100_000_000, "ethernet:250000000"))
    with pytest.raises(
        hetcomm.InvalidArgumentError, match=r"NICs ethernet:125000000, got .*25000000"
    ):
        other.collective("all_reduce", one, 1 << 20)


def test_the_profile_of_the_environment_prices_plans_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = topology_of(islands_of("2+2", "1gbit", "block"))
    measured = links_of(tuned(50_000_000), topology, topology, 1)
    given = PlannedNetwork(topology, measured).collective("all_reduce", [(0, 2)], 64 << 20)
    spec = _core.Spec(_core.Collective.all_reduce, count=1 << 20)
    explained = explanation(topology, spec, [0], measured)
    (tmp_path / "job.profile").write_text(str(measured))
    monkeypatch.setenv("HETCOMM_PROFILE", str(tmp_path / "job.profile"))
    assert PlannedNetwork(topology).collective("all_reduce", [(0, 2)], 64 << 20) == given
    assert explanation(topology, spec, [0]).candidates == explained.candidates


def test_bad_input_is_refused() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"bandwidth above 0.*measure the link"):
        Curve(1, 0, 0, 0, 1)
    with pytest.raises(hetcomm.InvalidArgumentError, match="a finite number above 0, got 0"):
        Curve(1, 0, 0, 1, 0)
    nowhere = Curves([Place("a", "x"), Place("b", "y")], {}, {})
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"\('', 'x'\) to \('', 'y'\).*measure"):
        nowhere.transfer([(0, 1)], 1)
    with pytest.raises(hetcomm.InvalidArgumentError, match="one of all_reduce"):
        planned().collective("broadcast", [[0, 1]], 1)


def test_hosts_without_links_are_refused() -> None:
    def without(sizes: str) -> _core.Topology:
        infos = topology_of(islands_of(sizes, "1gbit", "block")).ranks
        for info in infos:
            info.nics = []
        return _core.Topology(infos)

    with pytest.raises(hetcomm.InvalidArgumentError, match=r"host 0: .*got 0; give the host a NIC"):
        PlannedNetwork(without("1+1"))
    assert PlannedNetwork(without("2")).collective("all_reduce", [[0, 1]], 1 << 20) > 0
