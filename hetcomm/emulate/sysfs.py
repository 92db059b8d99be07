"""The NIC facts of an emulated host, in the layout of the kernel's sysfs."""

from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from .cluster import Cluster, Nic
from .network import hardware_address

UNSHAPED_MBIT = 10_000  # the kernel's speed of a veth
# [upper bound in Mbit/s] -> lanes and signalling, the kernel's names of InfiniBand rates
_SIGNALLING = {2_500: "1X SDR", 10_000: "4X SDR", 20_000: "4X DDR", 40_000: "4X QDR"}


def write(root: Path, cluster: Cluster, host: int) -> None:
    """Writes class/net, class/infiniband and the devices behind them under `root`."""
    for number in range(len(cluster.hosts[host].nics)):
        _write_nic(root, cluster, host, number)


def megabits(nic: Nic) -> int:
    return UNSHAPED_MBIT if nic.slower is None else max(1, nic.slower // 1_000_000)


def _write_nic(root: Path, cluster: Cluster, host: int, number: int) -> None:
    name, nic = f"eth{number}", cluster.hosts[host].nics[number]
    device = root / f"devices/nic{number}"
    link_type = 32 if nic.fabric == "infiniband" else 1  # ARPHRD_INFINIBAND, ARPHRD_ETHER
    _fill(device, {"numa_node": nic.numa})
    (device / "net" / name).mkdir(parents=True)
    _fill(
        root / "class/net" / name,
        {
            "speed": megabits(nic),
            "operstate": "up",
            "type": link_type,
            "address": hardware_address(host, number),
            "mtu": cluster.mtu,
        },
    )
    (root / "class/net" / name / "device").symlink_to(f"../../../devices/nic{number}")
    if nic.fabric == "ethernet":
        return
    rdma = f"rdma_{name}"
    (device / "infiniband" / rdma).mkdir(parents=True)
    port = root / "class/infiniband" / rdma / "ports/1"
    _fill(
        port,
        {
            "link_layer": "InfiniBand" if nic.fabric == "infiniband" else "Ethernet",
            "state": "4: ACTIVE",
            "rate": _rate(megabits(nic)),
        },
    )
    _write_gids(port, nic, name, cluster.address(host, number))
    (root / "class/infiniband" / rdma / "device").symlink_to(f"../../../devices/nic{number}")


def _write_gids(port: Path, nic: Nic, name: str, own: str) -> None:
    """The port's addresses, in the order of drivers."""
    suffix = int(IPv4Address(own))
    local = IPv6Address((0xFE80 << 112) | suffix)
    mapped = IPv6Address((0xFFFF << 32) | suffix)
    if nic.fabric == "infiniband":
        gids, types = [local], ["IB/RoCE v1"]
    else:
        gids = [local, local, mapped, mapped]
        types = ["IB/RoCE v1", "RoCE v2"] * 2
    _fill(port / "gids", {str(i): gid.exploded for i, gid in enumerate(gids)})
    _fill(port / "gid_attrs/types", {str(i): text for i, text in enumerate(types)})
    if nic.fabric == "roce":
        _fill(port / "gid_attrs/ndevs", {str(i): name for i in range(len(gids))})


def _rate(mbit: int) -> str:
    lanes = next((name for bound, name in _SIGNALLING.items() if mbit <= bound), "4X QDR")
    return f"{mbit / 1000:g} Gb/sec ({lanes})"


def _fill(directory: Path, files: dict[str, object]) -> None:
    directory.mkdir(parents=True)
    for name, value in files.items():
        (directory / name).write_text(f"{value}\n")
