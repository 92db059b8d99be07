"""Probing: the NICs taken on recorded machines, and the facts of this process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sysfs_trees import Sysfs, mapped, roce_gids

from hetcomm import _core
from hetcomm._core import Fabric, InvalidArgumentError, Machine, Nic

GIGABIT = 125_000_000


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    tree = Sysfs(tmp_path)
    tree.interface("lo", state="unknown", kind=772, flags="0x9")
    return tree


def names(machine: Machine) -> list[str]:
    return [nic.name for nic in _core.probe_nics(machine)]


def why(machine: Machine, name: str) -> str:
    lines = [x for x in _core.explain_nics(machine) if x.startswith(f"{name}: ")]
    assert len(lines) == 1, f"{name} in {_core.explain_nics(machine)}"
    return lines[0]


def test_dgx_h100_is_recognised(sysfs: Sysfs) -> None:
    compute = [0, 3, 4, 5, 6, 9, 10, 11]
    for index, device in enumerate(compute):
        interface = f"ibp{index}s0"
        up = index == 0
        sysfs.interface(interface, 400_000 if up else None, kind=32, state="up" if up else "down")
        sysfs.port(f"mlx5_{device}", interface, numa=index // 4)
    sysfs.interface("enp170s0f0np0", 200_000, numa=1)
    gids = roce_gids("enp170s0f0np0", "10.2.0.1")
    sysfs.port("mlx5_7", "enp170s0f0np0", layer="Ethernet", rate="200 Gb/sec (4X HDR)", gids=gids)
    sysfs.interface("enp170s0f1np1", state="down")
    sysfs.port("mlx5_8", "enp170s0f1np1", layer="Ethernet", rate="40 Gb/sec", state="1: DOWN")
    sysfs.interface("eno3", 10_000, numa=0)
    sysfs.interface("enxb03af2b6059f", -1)  # the virtual NIC of the management controller
    sysfs.interface("docker0", -1, state="down")
    addresses = {
        "ibp0s0": "10.1.0.1",
        "enp170s0f0np0": "10.2.0.1",
        "eno3": "10.3.0.1",
        "docker0": "172.17.0.1",
        "enxb03af2b6059f": "169.254.0.17",
    }
    machine = sysfs.machine(addresses, default_routes={"eno3"})

    taken = _core.probe_nics(machine)
    assert [nic.name for nic in taken] == [*(f"mlx5_{d}" for d in compute), "mlx5_7", "eno3"]
    assert taken[0] == Nic(
        name="mlx5_0",
        interface="ibp0s0",
        fabric=Fabric.infiniband,
        bandwidth=400 * GIGABIT,
        bandwidth_known=True,
        numa=0,
        address="10.1.0.1",
    )
    assert (taken[7].numa, taken[7].address) == (1, "")  # InfiniBand needs no IP address
    assert (taken[8].fabric, taken[8].bandwidth) == (Fabric.roce, 200 * GIGABIT)
    assert "taken, infiniband, 400 Gbit/s, NUMA node 0, interface ibp0s0, 10.1.0.1" in why(
        machine, "mlx5_0"
    )
    assert "it is down" in why(machine, "ibp1s0")
    assert "reached through mlx5_0" in why(machine, "ibp0s0")
    assert 'state "DOWN"' in why(machine, "mlx5_8")
    assert "link-local address only" in why(machine, "enxb03af2b6059f")
    assert "it is down" in why(machine, "docker0")


def test_the_rate_of_a_port_belongs_to_one_interface(sysfs: Sysfs) -> None:
    addresses = {}
    below = {"eth0.7": "eth0", "bond0": "eth1 eth2", "bond0.7": "bond0", "bond0.8": "bond0"}
    for name in ("eth0", "eth0.7", "eth1", "eth2", "bond0", "bond0.7", "bond0.8", "eth3"):
        ports = below.get(name, "").split()
        sysfs.interface(name, 25_000, **{f"lower_{port}": "" for port in ports})
        addresses[name] = f"10.1.{len(addresses)}.1"
    del addresses["eth1"], addresses["eth2"]
    known = {nic.name: nic.bandwidth_known for nic in _core.probe_nics(sysfs.machine(addresses))}
    own = {"eth0", "bond0", "eth3"}
    assert known == {name: name in own for name in addresses}


def test_mi300x_with_roce_is_recognised(sysfs: Sysfs) -> None:
    addresses = {"eno0": "10.0.0.7"}
    for index in range(8):
        sysfs.interface(f"eth{index}", 400_000)
        gids = roce_gids(f"eth{index}", f"10.{index}.0.7")
        sysfs.port(f"bnxt_re{index}", f"eth{index}", layer="Ethernet", gids=gids)
        addresses[f"eth{index}"] = f"10.{index}.0.7"
    sysfs.interface("eno0", 25_000)
    taken = _core.probe_nics(sysfs.machine(addresses, default_routes={"eno0"}))
    assert [nic.name for nic in taken] == [*(f"bnxt_re{i}" for i in range(8)), "eno0"]
    assert all(nic.fabric == Fabric.roce and nic.address for nic in taken[:8])
    assert (taken[8].fabric, taken[8].bandwidth) == (Fabric.ethernet, 25 * GIGABIT)


def test_a100_with_two_roce_ports_and_a_management_bond_is_recognised(sysfs: Sysfs) -> None:
    for index in range(2):
        sysfs.interface(f"ens{index}", 200_000, numa=index)
        gids = roce_gids(f"ens{index}", "10.1.0.1" if index == 1 else "")
        sysfs.port(
            f"mlx5_{index}", f"ens{index}", layer="Ethernet", rate="200 Gb/sec (4X HDR)", gids=gids
        )
        sysfs.interface(f"eno{index}", 10_000, master="bond0")
    sysfs.interface("bond0", 20_000, uevent="DEVTYPE=bond\nINTERFACE=bond0")
    (sysfs.root / "class/net/bonding_masters").write_text("bond0\n")
    # The first port has a cable but no address, so it has no routable GID.
    machine = sysfs.machine({"ens1": "10.1.0.1", "bond0": "10.9.0.1"}, default_routes={"bond0"})
    assert names(machine) == ["mlx5_1", "bond0"]
    assert "no IP address for a RoCE v2 GID; give ens0 an IP address" in why(machine, "mlx5_0")
    assert [line.split(":")[0] for line in _core.nic_warnings(machine)] == [
        "RoCE port mlx5_0 is not used for RoCE"
    ]
    assert "a member of bond0" in why(machine, "eno1")
    assert "20 Gbit/s" in why(machine, "bond0")


def test_roce_ports_inside_a_bond_are_found(sysfs: Sysfs) -> None:
    sysfs.interface("bond0", 200_000)
    for index in range(2):
        sysfs.interface(f"ens{index}", 100_000, master="bond0", dev_port="0")
    gids = roce_gids("bond0", "10.1.0.1")
    sysfs.port("mlx5_bond_0", "ens0", layer="Ethernet", rate="200 Gb/sec (4X HDR)", gids=gids)
    machine = sysfs.machine({"bond0": "10.1.0.1"})
    (only,) = _core.probe_nics(machine)
    assert (only.name, only.interface, only.address) == ("mlx5_bond_0", "bond0", "10.1.0.1")
    assert "reached through mlx5_bond_0" in why(machine, "bond0")


def test_the_gid_table_finds_the_vlan_with_the_address(sysfs: Sysfs) -> None:
    sysfs.interface("ens0", 100_000)
    sysfs.interface("ens0.7", 100_000)
    local = "fe80:0000:0000:0000:0e42:a1ff:fe65:8c2a"
    gids = {"0": (local, "RoCE v2", "ens0"), "1": (mapped("10.7.0.1"), "RoCE v2", "ens0.7")}
    sysfs.port("mlx5_0", "ens0", layer="Ethernet", gids=gids)
    (only,) = _core.probe_nics(sysfs.machine({"ens0.7": "10.7.0.1/24"}))
    assert (only.name, only.interface, only.address) == ("mlx5_0", "ens0.7", "10.7.0.1")
    assert (only.gid, only.subnet) == (1, "10.7.0.0/24")


@pytest.mark.parametrize(
    ("gids", "reason"),
    [
        ({}, "none of its GIDs carries 10.1.0.1 of ens0; assign the address to ens0 again"),
        (
            {"0": (mapped("10.1.0.1"), "IB/RoCE v1", "ens0")},
            "its GID with 10.1.0.1 has type IB/RoCE v1, not RoCE v2; switch the port to RoCE v2",
        ),
        ({"0": (mapped("10.1.0.2"), "RoCE v2", "ens0")}, "none of its GIDs carries 10.1.0.1"),
    ],
)
def test_a_roce_port_without_a_usable_gid_is_plain_ethernet(
    sysfs: Sysfs, gids: dict[str, tuple[str, str, str]], reason: str
) -> None:
    sysfs.interface("ens0", 100_000)
    sysfs.port("mlx5_0", "ens0", layer="Ethernet", gids=gids)
    machine = sysfs.machine({"ens0": "10.1.0.1/16"})
    (only,) = _core.probe_nics(machine)
    assert (only.name, only.fabric, only.subnet) == ("ens0", Fabric.ethernet, "10.1.0.0/16")
    assert reason in why(machine, "mlx5_0")
    (warning,) = _core.nic_warnings(machine)
    assert warning.startswith("RoCE port mlx5_0 is not used for RoCE: " + reason)


def test_an_ipv6_address_has_a_gid_of_its_own(sysfs: Sysfs) -> None:
    sysfs.interface("ens0", 100_000)
    gids = {"3": ("fd00:0000:0000:0007:0000:0000:0000:0001", "RoCE v2", "ens0")}
    sysfs.port("rocep1s0", "ens0", layer="Ethernet", gids=gids)
    (only,) = _core.probe_nics(sysfs.machine({"ens0": "fd00:0:0:7::1/64"}))
    assert (only.gid, only.subnet) == (3, "fd00:0:0:7::/64")


def test_both_ports_of_one_device_are_found(sysfs: Sysfs) -> None:
    for port in (1, 2):
        sysfs.interface(f"ens{port}", 40_000, dev_port=str(port - 1))
        gids = roce_gids(f"ens{port}", f"10.0.{port - 1}.1")
        rate = "40 Gb/sec (4X FDR10)"
        sysfs.port("mlx4_0", f"ens{port}", layer="Ethernet", rate=rate, port=port, gids=gids)
    taken = _core.probe_nics(sysfs.machine({"ens1": "10.0.0.1", "ens2": "10.0.1.1"}))
    assert [(n.name, n.interface) for n in taken] == [("mlx4_0", "ens1"), ("mlx4_0:2", "ens2")]


@pytest.mark.parametrize("speed", [-1, 4294967295, None])
def test_cloud_machine_with_virtio_is_recognised(sysfs: Sysfs, speed: int | None) -> None:
    sysfs.interface("eth0", speed)
    sysfs.interface("docker0", -1)
    sysfs.interface("veth1a2b3c4", 10_000, master="docker0")
    machine = sysfs.machine({"eth0": "10.0.0.4", "docker0": "172.17.0.1"})
    (only,) = _core.probe_nics(machine)
    assert (only.name, only.bandwidth, only.bandwidth_known) == ("eth0", 10 * GIGABIT, False)
    assert "10 Gbit/s (assumed: the driver reports none for it alone)" in why(machine, "eth0")
    assert "a container bridge, and there is a better one" in why(machine, "docker0")
    assert "a member of docker0" in why(machine, "veth1a2b3c4")


def laptop(sysfs: Sysfs, *, cable: bool) -> Machine:
    sysfs.interface("enp0s31f6", 1000 if cable else None, state="up" if cable else "down")
    sysfs.interface("wlp2s0", uevent="DEVTYPE=wlan\nINTERFACE=wlp2s0")
    sysfs.interface("docker0", -1, state="down")
    sysfs.interface("virbr0", -1)
    sysfs.interface("office", 10, kind=65534, state="unknown", tun_flags="0x1001")
    sysfs.interface("ifb0", -1)
    addresses = {"wlp2s0": "192.168.1.5", "office": "10.8.0.2", "ifb0": "10.9.0.1"}
    addresses |= {"virbr0": "192.168.122.1", "docker0": "172.17.0.1"}
    return sysfs.machine(addresses | ({"enp0s31f6": "192.168.1.4"} if cable else {}))


def test_laptop_is_recognised(sysfs: Sysfs) -> None:
    machine = laptop(sysfs, cable=False)
    assert names(machine) == ["wlp2s0"]
    assert "a tunnel" in why(machine, "office")
    assert "virtual machines" in why(machine, "virbr0")
    assert "traffic shaping" in why(machine, "ifb0")


def test_a_cable_is_preferred_to_wireless(sysfs: Sysfs) -> None:
    assert names(laptop(sysfs, cable=True)) == ["enp0s31f6", "wlp2s0"]


def test_a_lone_tunnel_is_used(sysfs: Sysfs) -> None:
    sysfs.interface("tap0", 10, tun_flags="0x1002")
    machine = sysfs.machine({"tap0": "10.0.2.100"})
    assert names(machine) == ["tap0"]
    assert "a tunnel, but nothing better can be used" in why(machine, "tap0")


@pytest.mark.parametrize("state", ["unknown", "up"])
def test_emulated_host_is_recognised(sysfs: Sysfs, state: str) -> None:
    sysfs.interface("eth0", 100_000, state=state)
    sysfs.interface("eth1", 40_000, state=state)
    sysfs.interface("eth2", 400_000, state="unknown", flags="0x1002")
    machine = sysfs.machine({f"eth{i}": f"198.18.{i}.1" for i in range(3)})
    assert names(machine) == ["eth0", "eth1"]
    assert "it is down" in why(machine, "eth2")


@pytest.mark.parametrize("state", ["down", "lowerlayerdown", "dormant", "notpresent"])
def test_interfaces_without_a_working_link_are_left_out(sysfs: Sysfs, state: str) -> None:
    sysfs.interface("eth0", 100_000, state=state)
    sysfs.interface("eth1", 1_000)
    assert names(sysfs.machine({"eth0": "10.0.0.1", "eth1": "10.0.1.1"})) == ["eth1"]


def test_the_default_route_then_the_name_decide_between_equals(sysfs: Sysfs) -> None:
    for index in (10, 2, 1):
        sysfs.interface(f"eth{index}", 10_000)
    addresses = {f"eth{i}": f"10.0.{i}.1" for i in (1, 2, 10)}
    assert names(sysfs.machine(addresses)) == ["eth1", "eth2", "eth10"]
    assert names(sysfs.machine(addresses, default_routes={"eth10"})) == ["eth10", "eth1", "eth2"]


def test_a_bridge_with_the_hosts_address_is_a_network(sysfs: Sysfs) -> None:
    sysfs.interface("eth0", 10_000, master="br0")
    sysfs.interface("br0", 10_000, uevent="DEVTYPE=bridge")
    assert names(sysfs.machine({"br0": "10.0.0.1"})) == ["br0"]


def test_an_interface_missing_in_sysfs_is_found(sysfs: Sysfs) -> None:
    assert names(sysfs.machine({"eth0": "10.0.0.1"})) == ["eth0"]


def test_a_lone_loopback_is_used(tmp_path: Path) -> None:
    machine = Machine(str(tmp_path))
    (only,) = _core.probe_nics(machine)
    assert (only.name, only.address, only.bandwidth_known) == ("lo", "127.0.0.1", False)
    assert "reaches this host only, but nothing better" in why(machine, "lo")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"layer": "Unspecified", "node": "7: unspecified"}, "link layer"),
        ({"layer": "Ethernet", "node": "2: RNIC"}, '"RNIC"'),
        ({"layer": "Ethernet"}, "not in this network namespace"),
        ({"state": "2: INIT"}, 'state "INIT"'),
    ],
)
def test_unusable_ports_are_left_out(sysfs: Sysfs, facts: dict[str, str], reason: str) -> None:
    sysfs.interface("eth0", 10_000)
    sysfs.port("rdma0", **facts)  # type: ignore[arg-type]
    machine = sysfs.machine({"eth0": "10.0.0.1"})
    assert names(machine) == ["eth0"]
    assert reason in why(machine, "rdma0")


def test_a_container_without_the_verbs_device_uses_no_rdma(sysfs: Sysfs, tmp_path: Path) -> None:
    sysfs.interface("ib0", 400_000, kind=32)
    sysfs.port("mlx5_0", "ib0")
    devices = tmp_path / "devices"
    machine = sysfs.machine({"ib0": "10.0.0.1"}, verbs=str(devices))
    assert names(machine) == ["ib0"]
    assert "ib_uverbs" in why(machine, "mlx5_0")
    sysfs.write(tmp_path / "class/infiniband_verbs/uverbs3", {"ibdev": "mlx5_0"})
    assert f"no access to {devices}/uverbs3" in why(machine, "mlx5_0")
    sysfs.write(devices, {"uverbs3": ""})
    assert names(machine) == ["mlx5_0"]


def test_requested_names_restrict_and_order(sysfs: Sysfs) -> None:
    for index in range(3):
        sysfs.interface(f"eth{index}", 10_000)
    sysfs.port("mlx5_0", "eth2", layer="Ethernet", gids=roce_gids("eth2", "10.0.2.1"))
    sysfs.interface("docker0", -1)
    addresses = {f"eth{i}": f"10.0.{i}.1" for i in range(3)} | {"docker0": "172.17.0.1"}
    machine = sysfs.machine(addresses, requested=["docker0", "eth1", "eth2", "mlx5_0"])
    assert names(machine) == ["docker0", "eth1", "mlx5_0"]
    assert "HETCOMM_SOCKET_IFNAME asks for it" in why(machine, "eth1")
    assert "HETCOMM_SOCKET_IFNAME does not name it" in why(machine, "eth0")


def test_requested_names_must_be_usable(sysfs: Sysfs) -> None:
    sysfs.interface("eth0", 10_000)
    sysfs.interface("eth1", 10_000, state="down")
    addresses = {"eth0": "10.0.0.1", "eth1": "10.0.1.1"}
    with pytest.raises(InvalidArgumentError, match=r"existing interfaces \(eth0, eth1, lo\).*eth9"):
        _core.probe_nics(sysfs.machine(addresses, requested=["eth0", "eth9"]))
    with pytest.raises(InvalidArgumentError, match=r'got "eth1" \(eth1: it is down\)'):
        _core.probe_nics(sysfs.machine(addresses, requested=["eth1"]))


def test_settings_direct_the_probe(sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs.port("mlx5_0")
    monkeypatch.setenv("HETCOMM_SYSFS_ROOT", str(sysfs.root))
    machine = Machine.current()
    assert set(machine.addresses) <= {"lo"}  # the interfaces of this machine are not in the tree
    assert [nic.name for nic in _core.probe_nics()] == ["mlx5_0"]
    monkeypatch.setenv("HETCOMM_SOCKET_IFNAME", " lo,")
    assert [nic.name for nic in _core.probe_nics()] == ["lo"]
    monkeypatch.setenv("HETCOMM_SYSFS_ROOT", str(sysfs.root / "nowhere"))
    with pytest.raises(InvalidArgumentError, match="HETCOMM_SYSFS_ROOT: expected a directory"):
        _core.probe_nics()


def test_this_process_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HETCOMM_HOST_ID", "HETCOMM_VENDOR", "HETCOMM_SOCKET_IFNAME"):
        monkeypatch.delenv(variable, raising=False)
    info = _core.probe_rank()
    assert info.host == _core.host_identity()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in info.host
    assert f"net:{os.stat('/proc/self/ns/net').st_ino}" in info.host
    assert (info.host_name, info.vendor) == (os.uname().nodename, "cpu")
    assert info.cores == len(os.sched_getaffinity(0))
    assert info.processors == sorted(os.sched_getaffinity(0))
    assert info.nics == _core.probe_nics()
    assert len(_core.explain_nics()) >= len(info.nics) >= 1
    monkeypatch.setenv("HETCOMM_HOST_ID", "rack 7")
    monkeypatch.setenv("HETCOMM_VENDOR", "amd")
    info = _core.probe_rank()
    assert (info.host, info.vendor) == ("rack 7", "amd")


PRINT_FACTS = "from hetcomm import _core as c; i = c.probe_rank(); print(i.host, i.cores, sep='|')"


def facts_of_process(*prefix: str) -> list[str]:
    command = [*prefix, sys.executable, "-P", "-c", PRINT_FACTS]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HETCOMM_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=60
    ).stdout.split("|")


@pytest.mark.needs("unshare")
def test_processes_of_one_host_agree_and_a_namespace_differs() -> None:
    assert facts_of_process()[0] == _core.host_identity()
    unshare = ["unshare", "--user", "--map-root-user", "--net"]
    assert facts_of_process(*unshare)[0] != _core.host_identity()


@pytest.mark.needs("taskset")
def test_cores_follow_the_affinity() -> None:
    assert facts_of_process("taskset", "-c", str(min(os.sched_getaffinity(0))))[1].strip() == "1"
