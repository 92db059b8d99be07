"""The NICs by which two hosts reach each other over IP, from their facts."""

from hypothesis import given
from hypothesis import strategies as st
from test_topology_rails import nic, rank

from hetcomm._core import Fabric, Topology


def path(topology: Topology, a: int = 0, b: int = 1) -> tuple[str, str, bool]:
    found = topology.ip_path(a, b)
    ends = topology.rank(a).nics[found.own], topology.rank(b).nics[found.peer]
    return ends[0].name, ends[1].name, found.common


def test_a_fast_nic_of_one_host_alone_is_passed_over() -> None:
    ranks = [rank(1, nic(0, 1)), rank(2, nic(9, 2, 25_000), nic(0, 2))]
    topology = Topology(ranks)
    assert path(topology) == ("eth0", "eth0", True)
    assert path(topology, 1, 0) == ("eth0", "eth0", True)
    assert [topology.host_bandwidth(host) for host in (0, 1)] == [1000, 1000]


def test_routed_fast_nics_come_before_a_slow_common_network() -> None:
    fast = [nic(5, host, 9000, network=10 + host) for host in (1, 2)]
    ranks = [rank(host, nic(0, host), fast[host - 1]) for host in (1, 2)]
    assert path(Topology(ranks)) == ("eth5", "eth5", False)
    failed = [(fast[0].subnet, fast[0].address, fast[1].address)]
    topology = Topology(ranks, failed)
    assert path(topology) == ("eth0", "eth0", True) == path(topology, 1, 0)


def test_a_network_with_one_address_on_two_hosts_is_passed_over() -> None:
    bridges = [nic(5, host, 9000, address="10.0.5.1") for host in (1, 2)]
    ranks = [rank(host, bridges[host - 1], nic(0, host)) for host in (1, 2)]
    assert path(Topology(ranks)) == ("eth0", "eth0", True)
    others = [nic(6, host, rate=10, network=10 + host) for host in (1, 2)]
    alone = Topology([rank(host, bridges[host - 1], others[host - 1]) for host in (1, 2)])
    assert path(alone) == ("eth6", "eth6", False)


def test_plain_ethernet_comes_before_rdma_ports() -> None:
    ranks = [rank(host, nic(5, host, 50_000, fabric=Fabric.roce), nic(0, host)) for host in (1, 2)]
    assert path(Topology(ranks)) == ("eth0", "eth0", True)


def test_a_rank_without_an_address_has_no_path() -> None:
    topology = Topology([rank(1, nic(0, 1, address="")), rank(2, nic(0, 2))])
    assert (topology.ip_path(0, 1).own, topology.ip_path(0, 1).peer) == (-1, 0)


some_nics = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=4)
pairs = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6)


@given(st.lists(some_nics, min_size=2, max_size=3), pairs)
def test_both_ends_find_the_same_path(
    hosts: list[list[tuple[int, int]]], failed: set[tuple[int, int]]
) -> None:
    def address(network: int, host: int, index: int) -> str:
        return f"10.0.{network}.{host}{index}"

    ranks = [
        rank(host, *(
            nic(i, host, rate, network, address=address(network, host, i))
            for i, (network, rate) in enumerate(nics)
        ))
        for host, nics in enumerate(hosts)
    ]  # fmt: skip
    unreachable = [
        (info.subnet, info.address, other.address)
        for a, b in failed
        for info in ranks[0].nics[a : a + 1]
        for other in ranks[1].nics[b : b + 1]
    ]
    topology = Topology(ranks, unreachable)
    for a in range(len(hosts)):
        for b in range(len(hosts)):
            if a == b:
                continue
            there, back = topology.ip_path(a, b), topology.ip_path(b, a)
            assert (there.own, there.peer) == (back.peer, back.own)
            ends = topology.rank(a).nics[there.own], topology.rank(b).nics[there.peer]
            assert not there.common or ends[0].subnet == ends[1].subnet
