"""The NICs that two ranks use together, from their facts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcomm import _core
from hetcomm._core import Fabric, Nic, RankInfo, Topology


def nic(index: int, host: int, rate: int = 1000, network: int | None = None, **facts: Any) -> Nic:
    number = index if network is None else network
    given: dict[str, Any] = {
        "name": f"eth{index}",
        "interface": f"eth{index}",
        "fabric": Fabric.ethernet,
        "bandwidth": rate,
        "bandwidth_known": True,
        "address": f"10.0.{number}.{host}",
        "subnet": f"10.0.{number}.0/24",
    }
    return Nic(**(given | facts))


def rank(host: int, *nics: Nic, rails: bool = True) -> RankInfo:
    return RankInfo(host=f"h{host}", host_name=f"h{host}", nics=list(nics), rails=rails)


def names(topology: Topology, a: int = 0, b: int = 1) -> list[tuple[str, str]]:
    ends = topology.rank(a).nics, topology.rank(b).nics
    return [(ends[0][r.own].name, ends[1][r.peer].name) for r in topology.rails(a, b)]


def test_rails_are_all_shared_networks_fastest_first() -> None:
    topology = Topology(
        [
            rank(1, nic(0, 1, 1000), nic(1, 1, 2000), nic(2, 1, 500, network=7)),
            rank(2, nic(5, 2, 4000, network=1), nic(6, 2, 900, network=0)),
        ]
    )
    assert names(topology) == [("eth1", "eth5"), ("eth0", "eth6")]
    assert [rail.bandwidth for rail in topology.rails(0, 1)] == [2000, 900]
    assert names(topology, 1, 0) == [("eth5", "eth1"), ("eth6", "eth0")]
    assert [topology.host_bandwidth(host) for host in (0, 1)] == [3000, 4900]
    assert topology.uplink(0) == 3000


def test_ranks_of_one_host_have_no_rails() -> None:
    nics = nic(0, 1), nic(1, 1)
    topology = Topology([rank(1, *nics), rank(1, *nics)])
    assert topology.rails(0, 1) == [] and topology.host_bandwidth(0) == 1000


@pytest.mark.parametrize(
    ("why", "facts"),
    [
        ("the rate is a guess", {"bandwidth_known": False}),
        ("no address", {"address": ""}),
        ("no known network", {"subnet": ""}),
        ("the network of the first", {"subnet": "10.0.0.0/24"}),
        ("another network", {"subnet": "10.0.9.0/24"}),
        ("an address that the other host has, too", {"address": "10.0.1.1"}),
        ("too slow to help", {"bandwidth": 100}),
        ("RDMA", {"fabric": Fabric.roce, "subnet": "10.0.8.0/24"}),
    ],
)
def test_one_nic_is_used_alone_beside_an_unsuitable_one(why: str, facts: dict[str, Any]) -> None:
    topology = Topology(
        [
            rank(1, nic(0, 1), nic(1, 1)),
            rank(2, nic(0, 2), nic(1, 2, **facts)),
        ]
    )
    assert topology.rails(0, 1) == [], why
    assert topology.host_bandwidth(0) == 1000


def test_rails_respect_the_nics_permitted_to_each_rank() -> None:
    topology = Topology([
        rank(1, nic(0, 1), nic(1, 1)), rank(2, nic(0, 2), nic(1, 2), rails=False),
    ])  # fmt: skip
    assert topology.rails(0, 1) == topology.rails(1, 0) == []


def test_a_faster_routed_nic_is_used_alone() -> None:
    topology = Topology(
        [
            rank(1, nic(0, 1, 9000, network=8), nic(1, 1), nic(2, 1)),
            rank(2, nic(0, 2, 9000, network=9), nic(1, 2), nic(2, 2)),
        ]
    )
    assert topology.rails(0, 1) == [] and topology.host_bandwidth(0) == 9000


def test_shared_rdma_is_used_alone() -> None:
    port = {"fabric": Fabric.roce, "subnet": "10.9.0.0/16"}
    topology = Topology([
        rank(host, nic(9, host, **port), nic(0, host), nic(1, host)) for host in (1, 2)
    ])  # fmt: skip
    assert topology.rails(0, 1) == [] and topology.host_bandwidth(0) == 1000


def test_host_bandwidth_counts_every_used_nic() -> None:
    topology = Topology(
        [
            rank(1, nic(0, 1), nic(1, 1)),
            rank(2, nic(0, 2)),
            rank(3, nic(0, 3), nic(1, 3)),
        ]
    )
    assert [topology.host_bandwidth(host) for host in range(3)] == [2000, 1000, 2000]
    assert topology.rails(0, 1) == [] and len(topology.rails(0, 2)) == 2


some_nics = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 5000), st.booleans()), min_size=1, max_size=4
)


@given(st.lists(some_nics, min_size=2, max_size=4))
def test_both_ends_find_the_same_rails(hosts: list[list[tuple[int, int, bool]]]) -> None:
    topology = Topology([
        rank(host, *(
            nic(i, host, rate, network, bandwidth_known=known, address=f"10.0.{network}.{host}{i}")
            for i, (network, rate, known) in enumerate(nics)
        ))
        for host, nics in enumerate(hosts)
    ])  # fmt: skip
    for a in range(len(hosts)):
        for b in range(len(hosts)):
            there, back = topology.rails(a, b), topology.rails(b, a)
            assert [(r.own, r.peer) for r in there] == [(r.peer, r.own) for r in back]
            assert [r.bandwidth for r in there] == [r.bandwidth for r in back]
            assert len(there) != 1 and (a != b or not there)
            networks = [topology.rank(a).nics[r.own].subnet for r in there]
            assert len(set(networks)) == len(networks)


def test_the_permission_for_rails_is_exchanged() -> None:
    for rails in (True, False):
        info = rank(1, nic(0, 1), rails=rails)
        assert _core.parse_rank_info(_core.serialize(info)).rails == rails


def test_nics_that_do_not_reach_each_other_are_no_rails() -> None:
    ranks = [rank(host, nic(0, host, 1000), nic(1, host, 900)) for host in range(3)]
    network, ends = ranks[0].nics[1].subnet, [info.nics[1].address for info in ranks]
    topology = _core.Topology(ranks, [(network, ends[1], ends[0])])
    assert names(topology, 0, 1) == [("eth0", "eth0")] == names(topology, 1, 0)
    assert len(topology.rails(0, 2)) == len(topology.rails(1, 2)) == 2
    assert [topology.host_bandwidth(host) for host in range(3)] == [1900] * 3
    assert topology.fingerprint == _core.Topology(ranks, topology.unreachable).fingerprint
    assert topology.fingerprint != _core.Topology(ranks).fingerprint
    alone = _core.Topology(ranks, [(network, ends[1], "")])
    assert [len(alone.rails(*pair)) for pair in ((0, 1), (1, 2), (0, 2))] == [1, 1, 2]
    assert [alone.host_bandwidth(host) for host in range(3)] == [1900, 1000, 1900]
    first = [(info.nics[0].subnet, info.nics[0].address, "") for info in ranks]
    neither = _core.Topology(ranks, [*first, (network, ends[0], ends[1])])
    assert neither.rails(0, 1) == [] and names(neither, 0, 2) == [("eth1", "eth1")]
