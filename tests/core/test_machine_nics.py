"""The NICs that ranks of real kinds of machine get, from recorded sysfs trees."""

import os
import subprocess
import sys
from pathlib import Path

import machines
import pytest
from machines import Make
from sysfs_trees import Sysfs

from hetcomm import _core
from hetcomm._core import Machine, RankInfo, Topology

GIGABIT = 125_000_000
COMPUTE = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
RAILS = [f"bnxt_re{index}" for index in range(8)]


def why(machine: Machine, name: str) -> str:
    (line,) = [x for x in _core.explain_nics(machine) if x.startswith(f"{name}: ")]
    return line


@pytest.mark.parametrize(
    ("kind", "names", "fabric", "gid", "network"),
    [
        (
            "dgx_h100",
            [*COMPUTE, "mlx5_1", "mlx5_7", "eno3"],
            "infiniband",
            -1,
            "fe80:0000:0000:0000",
        ),
        ("mi300x", [*RAILS, "eno8303"], "roce", 3, "192.168.0.0/24"),
        ("a100_roce", ["mlx5_0", "mlx5_1", "mlx5_bond_0"], "roce", 3, "10.5.0.0/24"),
        ("a100_infiniband", ["mlx5_0", "eno1"], "infiniband", -1, "fe80:0000:0000:0000"),
        ("cloud", ["ens5"], "ethernet", -1, "172.31.16.0/20"),
        ("laptop", ["wlp0s20f3"], "ethernet", -1, "192.168.1.0/24"),
    ],
)
def test_nics_of_recorded_machines_are_found(
    make: Make, kind: str, names: list[str], fabric: str, gid: int, network: str
) -> None:
    machine = make(kind).machine()
    nics = _core.probe_nics(machine)
    assert [nic.name for nic in nics] == names
    assert (nics[0].fabric.name, nics[0].gid, nics[0].subnet) == (fabric, gid, network)
    assert _core.nic_warnings(machine) == []


def test_nics_of_recorded_machines_are_explained(make: Make) -> None:
    dgx = make("dgx_h100").machine()
    assert "subnet fe80:0000:0000:0000" in why(dgx, "mlx5_0")
    assert "taken, roce, 200 Gbit/s, NUMA node 1" in why(dgx, "mlx5_7")
    assert "10.2.1.1, GID 3 (RoCE v2), network 10.2.1.0/24" in why(dgx, "mlx5_7")
    assert 'state "DOWN"' in why(dgx, "mlx5_8")
    a100 = make("a100_roce").machine()
    assert "reached through mlx5_bond_0" in why(a100, "bond0")
    assert "a member of bond0" in why(a100, "eno1np1")
    assert "interface bond0, 10.9.0.2, GID 3" in why(a100, "mlx5_bond_0")
    laptop = make("laptop").machine()
    assert "a container bridge" in why(laptop, "docker0")
    assert "a container bridge" in why(laptop, "br-0a1b2c3d4e5f")
    assert "a member of docker0" in why(laptop, "veth1a2b3c4")
    assert "a tunnel" in why(laptop, "tun0")
    assert "assumed" in why(laptop, "wlp0s20f3")


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("dgx_h100", COMPUTE),
        ("mi300x", RAILS),
        ("a100_roce", ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"]),
        ("a100_infiniband", ["mlx5_0"] * 4),
        ("cloud", ["ens5"]),
    ],
)
def test_every_device_begins_with_its_nearest_nic(make: Make, kind: str, first: list[str]) -> None:
    ranks = make(kind).ranks()
    assert [info.nics[0].name for info in ranks] == first
    assert all(
        sorted(n.name for n in info.nics) == sorted(n.name for n in ranks[0].nics) for info in ranks
    )
    distinct = {info.nics[0].name: info.nics[0].bandwidth for info in ranks}
    topology = Topology(ranks)
    assert topology.host_bandwidth(0) == sum(distinct.values())
    assert topology.uplink(0) == topology.host_bandwidth(0) // len(ranks)


def test_eight_nics_add_up(make: Make) -> None:
    assert Topology(make("dgx_h100").ranks()).uplink(5) == 400 * GIGABIT


@pytest.mark.parametrize(
    ("devices", "nics", "first"),
    [(4, 2, [0, 0, 1, 1]), (2, 4, [0, 2]), (3, 2, [0, 0, 1]), (3, 3, [0, 1, 2])],
)
def test_equally_near_devices_share_nics_evenly(
    tmp_path: Path, devices: int, nics: int, first: list[int]
) -> None:
    tree = Sysfs(tmp_path)
    for index in range(nics):
        behind = tree.pci_device(f"0000:2{index}:00.0", "pci0000:20", numa=0, kind=machines.NETWORK)
        tree.port(f"mlx5_{index}", behind=behind)
    for index in range(devices):
        tree.pci_device(f"0000:3{index}:00.0", "pci0000:30", numa=0, kind=machines.NVIDIA)
    tree.pci_device("0000:40:00.0", "pci0000:40", numa=0, kind="0x010802")  # a disk
    machine = tree.machine({})
    found = _core.probe_nics(machine)
    assert [
        _core.prefer_near(machine, f"0000:3{index}:00.0", found)[0].name for index in range(devices)
    ] == [f"mlx5_{index}" for index in first]


def test_nics_keep_their_order_without_device_facts(make: Make) -> None:
    machine = make("dgx_h100").machine()
    nics = _core.probe_nics(machine)
    for bus in ("", "0000:77:00.0", "nonsense"):
        assert _core.prefer_near(machine, bus, nics) == nics
    assert _core.prefer_near(machine, "0000:DF:00.0", nics)[0].name == "mlx5_11"
    ordered = Machine(machine.sysfs, machine.addresses, requested=["mlx5_3", "mlx5_11"])
    assert _core.prefer_near(ordered, "0000:df:00.0", _core.probe_nics(ordered))[0].name == "mlx5_3"


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        ("dgx_h100", "10.9.0.1"),
        ("mi300x", "10.9.0.1"),
        ("a100_roce", "10.5.0.1"),
        ("laptop", "192.168.1.1"),
    ],
)
def test_ranks_meet_on_plain_ethernet_if_present(make: Make, kind: str, address: str) -> None:
    assert _core.contact_address(make(kind).ranks(1)[0]) == address
    assert _core.contact_address(RankInfo(host="a")) == "127.0.0.1"


def test_a_recorded_tree_is_enough_for_a_process(make: Make) -> None:
    """With addresses in the tree, one setting gives a process the facts of another machine."""
    host = make("mi300x")
    ports = host.tree.root / "class/infiniband/bnxt_re3/ports/1/gid_attrs/types"
    (ports / "3").write_text("IB/RoCE v1\n")
    script = (
        "from hetcomm import _core as c; info = c.probe_rank();"
        "print(*(n.name for n in info.nics), *info.warnings, sep='\\n')"
    )
    environment = os.environ | {
        "HETCOMM_SYSFS_ROOT": str(host.tree.root),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    environment.pop("HETCOMM_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *names, warning = done.stdout.splitlines()
    assert names == [n for n in RAILS if n != "bnxt_re3"] + ["ens13np0", "eno8303"]
    assert warning.startswith("RoCE port bnxt_re3 is not used for RoCE")
    assert "has type IB/RoCE v1, IB/RoCE v1, not RoCE v2; switch the port" in warning
