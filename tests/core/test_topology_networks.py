"""The islands of real kinds of machine and their networks, from recorded sysfs trees."""

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import Make
from sysfs_trees import Sysfs, roce_gids

from hetcomm import _core
from hetcomm._core import Fabric, IslandNetwork, Memory, Nic, RankInfo, Topology

GIGABIT = 125_000_000
COMPUTE = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
RAILS = [f"bnxt_re{index}" for index in range(8)]


def network_of(topology: Topology, island: int = 0) -> IslandNetwork:
    return topology.island_network(island)


def test_two_dgx_are_one_infiniband_island(make: Make) -> None:
    topology = Topology(make("dgx_h100").ranks() + make("dgx_h100").ranks())
    assert topology.islands == [list(range(16))]
    network = network_of(topology)
    assert network.fabric == Fabric.infiniband
    assert sorted(network.members[3].devices) == sorted(COMPUTE)  # neither storage nor management
    assert network.members[3].devices[0] == "mlx5_5"
    assert {(m.gid, m.interface) for m in network.members} == {(-1, "eno3")}
    assert network.why == "all of its 2 hosts are on InfiniBand subnet fe80:0000:0000:0000"


def test_dgx_and_mi300x_are_two_islands_with_ethernet_between(make: Make) -> None:
    dgx, mi300x = make("dgx_h100").ranks(), make("mi300x").ranks()
    topology = Topology(list(chain(*zip(dgx, mi300x, strict=True))))
    assert topology.islands == [list(range(0, 16, 2)), list(range(1, 16, 2))]
    assert [network_of(topology, i).fabric for i in (0, 1)] == [Fabric.pcie] * 2
    assert topology.fabric_between(0, 1) == Fabric.ethernet
    assert topology.staged(0, 1)
    # The bridge is as fast as the Ethernet NICs, whatever the speed of islands.
    assert [topology.host_bandwidth(host) for host in (0, 1)] == [10 * GIGABIT, 25 * GIGABIT]


def test_storage_nics_on_the_other_islands_network_carry_the_bridge(make: Make) -> None:
    dgx, a100 = make("dgx_h100").ranks(1), make("a100_roce").ranks(1)
    shared = [nic for nic in a100[0].nics if nic.name == "mlx5_1"]
    shared[0].subnet = "10.2.1.0/24"  # connected to the storage network of the DGX
    a100[0].nics = shared
    a100[0].direct = {Fabric.roce}
    topology = Topology(dgx + a100)
    assert topology.islands == [[0], [1]]
    assert topology.fabric_between(0, 1) == Fabric.roce
    assert (topology.staged(0, 1), topology.staged(1, 0)) == (True, False)


def test_interleaved_ranks_of_four_hosts_form_islands(make: Make) -> None:
    hosts = [make(kind).ranks() for kind in ("dgx_h100", "mi300x", "dgx_h100", "mi300x")]
    topology = Topology(list(chain(*zip(*hosts, strict=True))))
    assert topology.islands == [list(range(0, 32, 2)), list(range(1, 32, 2))]
    nvidia, amd = network_of(topology, 0), network_of(topology, 1)
    assert (nvidia.fabric, amd.fabric) == (Fabric.infiniband, Fabric.roce)
    assert [topology.host_bandwidth(host) for host in (0, 1)] == [10 * GIGABIT, 25 * GIGABIT]
    assert {m.gid for m in amd.members} == {3}
    assert sorted(amd.members[0].devices) == RAILS
    assert amd.members[2].devices[0] == "bnxt_re1"
    assert {m.interface for m in amd.members} == {"eno8303"}
    assert amd.why.startswith("all of its 2 hosts have RoCE v2 on 192.168.0.0/24, 192.168.1.0/24")


def test_a_bond_that_is_roce_as_well_is_left_to_management(make: Make) -> None:
    topology = Topology(make("a100_roce").ranks() + make("a100_roce").ranks())
    assert topology.islands == [list(range(8))]
    network = network_of(topology)
    assert (network.fabric, network.passed_over) == (Fabric.roce, "")
    assert [network.members[i].devices for i in (0, 7)] == [
        ["mlx5_0", "mlx5_1"],
        ["mlx5_1", "mlx5_0"],
    ]
    assert {(m.gid, m.interface) for m in network.members} == {(3, "ens4np0")}


def test_two_infiniband_subnets_are_two_islands(make: Make) -> None:
    other = "fec0:0000:0000:0001"
    hosts = [make("dgx_h100"), make("dgx_h100", subnet=other), make("dgx_h100")]
    topology = Topology([host.ranks(1)[0] for host in hosts])
    assert topology.islands == [[0, 2], [1]]
    assert topology.fabric_between(0, 2) == Fabric.infiniband
    # Their storage networks are the same network.
    assert topology.fabric_between(0, 1) == Fabric.roce


def test_roce_and_infiniband_of_one_vendor_are_two_islands(make: Make) -> None:
    roce, infiniband = make("a100_roce").ranks(), make("a100_infiniband").ranks()
    topology = Topology(roce + infiniband)
    assert topology.islands == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert topology.fabric_between(0, 4) == Fabric.ethernet


def test_a_label_makes_one_island_over_the_common_network(make: Make) -> None:
    ranks = make("a100_roce").ranks(island="all") + make("a100_infiniband").ranks(island="all")
    topology = Topology(ranks)
    assert topology.islands == [list(range(8))]
    network = network_of(topology)
    assert network.fabric == Fabric.ethernet
    assert [network.members[i].devices for i in (0, 7)] == [["bond0"], ["eno1"]]
    assert network.why == (
        "sockets on IP network 10.9.0.0/16; not infiniband: rank 0 on host1 has none; "
        "not roce: rank 4 on host2 has none"
    )


def test_labels_split_ranks_of_one_network(make: Make) -> None:
    ranks = make("dgx_h100").ranks(2, island="a") + make("dgx_h100").ranks(2)
    ranks += make("dgx_h100").ranks(2)
    assert Topology(ranks).islands == [[0, 1], [2, 3, 4, 5]]
    host = [RankInfo(host="a", island=label) for label in ("x", "y", "x")]
    assert Topology([*host, RankInfo(host="b", island="x")]).islands == [[0, 2], [1], [3]]


def test_one_label_for_two_vendors_is_rejected() -> None:
    ranks = [
        RankInfo(host=str(i), host_name=f"node{i}", vendor=vendor, island=label)
        for i, (vendor, label) in enumerate([("nvidia", "x"), ("amd", ""), ("amd", "x")])
    ]
    with pytest.raises(_core.InvalidArgumentError) as caught:
        Topology(ranks)
    assert "HETCOMM_ISLAND=x: expected ranks of one vendor, got nvidia on rank 0 (node0)" in str(
        caught.value
    )
    assert "amd on rank 2 (node2)" in str(caught.value) and "HETCOMM_VENDOR" in str(caught.value)


def test_roce_on_different_ip_networks_is_not_one_island(make: Make) -> None:
    ranks = make("a100_roce").ranks(1) + make("a100_roce").ranks(1)
    for number, info in enumerate(ranks):
        nics = info.nics[:1]
        nics[0].subnet = f"10.{number}.0.0/24"
        info.nics = nics
    assert Topology(ranks).islands == [[0], [1]]
    for info in ranks:
        info.island = "routed"
    topology = Topology(ranks)
    assert topology.islands == [[0, 1]]
    assert network_of(topology).fabric == Fabric.roce
    assert "which HETCOMM_ISLAND says is routed" in network_of(topology).why


def test_point_to_point_links_are_routed(make: Make) -> None:
    hosts = [make("mi300x", rails=True).ranks() for _ in range(2)]
    assert hosts[0][0].nics[0].subnet == "192.168.0.2/31"
    topology = Topology(hosts[0] + hosts[1])
    assert topology.islands == [list(range(16))]
    assert network_of(topology).fabric == Fabric.roce
    assert topology.fabric_between(0, 8) == Fabric.roce


def test_cloud_machines_meet_over_sockets(make: Make) -> None:
    topology = Topology(make("cloud").ranks() + make("cloud").ranks())
    network = network_of(topology)
    assert topology.islands == [[0, 1]]
    assert (network.fabric, network.members[1].devices) == (Fabric.ethernet, ["ens5"])
    assert network.why == "sockets on IP network 172.31.16.0/20; no RDMA"


def test_sockets_take_the_interface_on_the_common_network() -> None:
    def host(name: str, *interfaces: tuple[str, str]) -> RankInfo:
        own = ord(name)
        nics = [
            Nic(name=n, interface=n, fabric=Fabric.ethernet, address=f"{s[:-4]}{own}", subnet=s)
            for n, s in interfaces
        ]
        return RankInfo(host=name, host_name=name, vendor="nvidia", memory=Memory.device, nics=nics)

    private, public = "10.1.0.0/24", "10.2.0.0/24"
    topology = Topology(
        [
            host("a", ("eth0", "10.3.0.0/24"), ("eth1", private)),
            host("b", ("ens1", private), ("ens2", public)),
        ]
    )
    assert [m.devices for m in network_of(topology).members] == [["eth1"], ["ens1"]]
    apart = Topology([host("a", ("eth0", private)), host("b", ("ens2", public))])
    assert [m.devices for m in network_of(apart).members] == [["eth0"], ["ens2"]]
    assert network_of(apart).why == "sockets between IP networks, taken to be routed; no RDMA"


def test_host_memory_makes_no_island_across_hosts(make: Make) -> None:
    topology = Topology(make("laptop").ranks(2) + make("laptop").ranks(1))
    assert topology.islands == [[0, 1], [2]]
    assert network_of(topology).fabric == Fabric.shm
    dgx = make("dgx_h100").ranks(1, memory=Memory.host) + make("dgx_h100").ranks(1)
    assert Topology(dgx).islands == [[0], [1]]


def test_gid_indices_that_differ_are_left_to_the_library(make: Make) -> None:
    ranks = make("mi300x").ranks(1) + make("mi300x").ranks(1)
    nics = ranks[0].nics
    nics[2].gid = 5
    ranks[0].nics = nics
    network = network_of(Topology(ranks))
    assert [member.gid for member in network.members] == [-1, 3]
    assert "GID indices differ by port" in network.why


def test_an_island_has_one_version_of_its_library(make: Make) -> None:
    ranks = make("dgx_h100").ranks(1, ccl="NCCL 2.28.3 (/a/libnccl.so.2)")
    ranks += make("dgx_h100").ranks(1, ccl="NCCL 2.28.3 (/b/libnccl.so.2)")
    assert Topology(ranks).islands == [[0, 1]]
    ranks += make("dgx_h100").ranks(1, ccl="NCCL 2.27.5 (/a/libnccl.so.2)")
    with pytest.raises(
        _core.VendorError,
        match=r"NCCL 2.28.3 on host1 and NCCL 2.27.5 on host3.*"
        "install the same version",
    ):
        Topology(ranks)
    ranks[2].island = "older"
    assert Topology(ranks).islands == [[0, 1], [2]]


SUBNETS = st.sampled_from(["", "10.0.0.0/24", "10.0.1.0/24"])
NICS = st.builds(
    lambda fabric, subnet: Nic(
        name=f"{fabric}-{subnet}",
        interface="eth0",
        fabric=getattr(Fabric, fabric),
        subnet=subnet,
        address="10.0.0.1",
    ),
    st.sampled_from(["infiniband", "roce", "ethernet"]),
    SUBNETS,
)
RANKS = st.builds(
    lambda vendor, labelled, **facts: RankInfo(
        vendor=vendor, island=f"x-{vendor}" if labelled else "", **facts
    ),
    host=st.sampled_from("abcd"),
    vendor=st.sampled_from(["nvidia", "amd"]),
    memory=st.sampled_from([Memory.host, Memory.device]),
    labelled=st.sampled_from([False, False, True]),
    nics=st.lists(NICS, max_size=3),
)


@given(st.lists(RANKS, min_size=1, max_size=10))
def test_any_island_can_use_its_network(ranks: list[RankInfo]) -> None:
    topology = Topology(ranks)
    for index, island in enumerate(topology.islands):
        infos = [ranks[member] for member in island]
        network = topology.island_network(index)
        assert len({(i.vendor, i.island, i.memory == Memory.host) for i in infos}) == 1
        assert len(network.members) == len(island)
        across = len({info.host for info in infos}) > 1
        assert across == (network.fabric in (Fabric.infiniband, Fabric.roce, Fabric.ethernet))
        if infos[0].memory == Memory.host:
            assert not across
        if network.fabric in (Fabric.infiniband, Fabric.roce):
            for info, member in zip(infos, network.members, strict=True):
                having = {nic.name for nic in info.nics if nic.fabric == network.fabric}
                assert member.devices and set(member.devices) <= having


def test_a_roce_island_without_gids_is_a_socket_island(tmp_path: Path) -> None:
    def host(number: int, gids: bool) -> RankInfo:
        tree = Sysfs(tmp_path / str(number))
        address = f"10.1.0.{number}"
        tree.interface("ens0", 100_000)
        tree.port(
            "mlx5_0", "ens0", layer="Ethernet", gids=roce_gids("ens0", address if gids else "")
        )
        machine = tree.machine({"ens0": f"{address}/24"})
        return RankInfo(
            host=str(number),
            host_name=f"n{number}",
            vendor="amd",
            memory=Memory.device,
            island="x",
            nics=_core.probe_nics(machine),
            warnings=_core.nic_warnings(machine),
        )

    network = network_of(Topology([host(1, True), host(2, False)]))
    assert (network.fabric, network.members[0].devices) == (Fabric.ethernet, ["ens0"])
    assert network.passed_over == (
        "not roce: rank 1 on n2 has none; RoCE port mlx5_0 is not used for RoCE: none of its GIDs "
        "carries 10.1.0.2 of ens0; assign the address to ens0 again, with the RDMA driver loaded"
    )
    assert network.why.endswith("; " + network.passed_over)
    assert network_of(Topology([host(3, True), host(4, True)])).passed_over == ""


def test_an_island_on_two_infiniband_subnets_names_the_ranks_of_each(make: Make) -> None:
    ranks = make("a100_infiniband").ranks(1) + make(
        "a100_infiniband", subnet="fec0:0000:0000:0001"
    ).ranks(1)
    for info in ranks:
        info.island = "x"
    network = network_of(Topology(ranks))
    assert network.fabric == Fabric.ethernet
    assert network.passed_over.startswith("not infiniband: rank 0 on host1 is on fe80:")
    assert ", rank 1 on host2 on fec0:" in network.passed_over
