"""Real kinds of machine as sysfs shows them, in folders for HETCOMM_SYSFS_ROOT.

A recorded tree also holds the file "addresses": the IP addresses, which sysfs does not show.
"""

from collections.abc import Callable
from pathlib import Path

from sysfs_trees import Sysfs, roce_gids

from hetcomm import _core
from hetcomm._core import Machine, Memory, RankInfo

NVIDIA, AMD, NETWORK = "0x030200", "0x120000", "0x020000"
DEFAULT_SUBNET = "fe80:0000:0000:0000"


class Recorded:
    """A machine: its tree, and the PCI bus ids of its accelerators in order of index."""

    def __init__(self, root: Path, number: int) -> None:
        self.tree = Sysfs(root)
        self.number = number
        self.vendor = "cpu"
        self.devices: list[str] = []
        self.addresses: dict[str, str] = {}
        self.default = ""
        self.tree.interface("lo", state="unknown", kind=772, flags="0x9")
        self.addresses["lo"] = "127.0.0.1/8"

    def save(self) -> "Recorded":
        lines = [
            f"{interface} {address}" + (" default" if interface == self.default else "")
            for interface, address in self.addresses.items()
        ]
        (self.tree.root / "addresses").write_text("\n".join(lines) + "\n")
        return self

    def machine(self) -> Machine:
        return Machine(str(self.tree.root), self.addresses, {self.default} - {""})

    def ranks(self, count: int | None = None, **facts: object) -> list[RankInfo]:
        """One rank for each accelerator, or `count` ranks."""
        machine = self.machine()
        nics = _core.probe_nics(machine)
        host = f"host{self.number}"
        common = {"host": host, "host_name": host, "vendor": self.vendor, "cores": 8}
        if not self.devices:
            return [RankInfo(**(common | {"nics": nics} | facts)) for _ in range(count or 1)]
        common["memory"] = Memory.device
        common["ccl"] = {"nvidia": "NCCL 2.28.3", "amd": "RCCL 2.26.6"}[self.vendor]
        return [
            RankInfo(
                **common
                | {"device": f"GPU {bus}", "nics": _core.prefer_near(machine, bus, nics)}
                | facts
            )
            for bus in self.devices[:count]
        ]

    def ethernet(
        self, name: str, address: str = "", speed: int | None = None, **facts: str
    ) -> None:
        self.tree.interface(name, speed, **facts)  # type: ignore[arg-type]
        if address:
            self.addresses[name] = address

    def infiniband(
        self,
        device: str,
        name: str,
        behind: Path,
        numa: int,
        rate: str,
        subnet: str,
        address: str = "",
    ) -> None:
        self.ethernet(name, address, None, kind="32", state="up" if address else "down")
        guid = f"b83f:d203:00{self.number:02x}:{int(behind.name[5:7], 16):04x}"
        gids = {"0": (f"{subnet}:{guid}", "IB", "")}
        self.tree.port(device, name, rate=rate, numa=numa, gids=gids, behind=behind)

    def roce(
        self, device: str, name: str, address: str, behind: Path, numa: int, speed: int, rate: str
    ) -> None:
        self.ethernet(name, address, speed)
        gids = roce_gids(name, address)
        self.tree.port(
            device, name, layer="Ethernet", rate=rate, numa=numa, gids=gids, behind=behind
        )


def dgx_h100(root: Path, number: int, subnet: str = DEFAULT_SUBNET) -> Recorded:
    """8 GPUs, each behind one switch with its InfiniBand NIC; storage over RoCE; management."""
    host = Recorded(root, number)
    host.vendor = "nvidia"
    buses = [
        ("18", "1b"),
        ("40", "43"),
        ("4f", "52"),
        ("5e", "61"),
        ("9a", "9d"),
        ("c0", "c3"),
        ("ce", "d1"),
        ("dc", "df"),
    ]
    devices = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
    for index, (device, (nic, gpu)) in enumerate(zip(devices, buses, strict=True)):
        numa = index // 4
        root_bus = f"{int(nic, 16) - 3:02x}"
        switch = f"pci0000:{root_bus}/0000:{root_bus}:01.0/0000:{int(nic, 16) - 2:02x}:00.0"
        behind = host.tree.pci_device(f"0000:{nic}:00.0", switch, numa=numa, kind="0x020700")
        host.tree.pci_device(f"0000:{gpu}:00.0", switch, numa=numa, kind=NVIDIA)
        host.devices.append(f"0000:{gpu}:00.0")
        name = f"ibp{int(nic, 16)}s0"
        host.infiniband(device, name, behind, numa, "400 Gb/sec (4X NDR)", subnet)
    for device, bus, numa, up in (
        ("mlx5_1", "29:00.0", 0, True),
        ("mlx5_2", "29:00.1", 0, False),
        ("mlx5_7", "aa:00.0", 1, True),
        ("mlx5_8", "aa:00.1", 1, False),
    ):
        behind = host.tree.pci_device(f"0000:{bus}", f"pci0000:{bus[:2]}", numa=numa, kind=NETWORK)
        name = f"enp{int(bus[:2], 16)}s0f{bus[-1]}np{bus[-1]}"
        if up:
            address = f"10.2.{numa}.{number}/24"
            host.roce(device, name, address, behind, numa, 200_000, "200 Gb/sec (4X HDR)")
        else:
            host.ethernet(name, state="down")
            host.tree.port(
                device,
                name,
                layer="Ethernet",
                state="1: DOWN",
                rate="40 Gb/sec (4X QDR)",
                numa=numa,
                behind=behind,
            )
    host.ethernet("eno3", f"10.9.0.{number}/16", 10_000)
    host.ethernet("docker0", "172.17.0.1/16", -1, state="down")
    host.default = "eno3"
    return host.save()


def mi300x(root: Path, number: int, *, rails: bool = False) -> Recorded:
    """8 GPUs and 8 Broadcom RoCE NICs; rails: point-to-point addresses that are routed."""
    host = Recorded(root, number)
    host.vendor = "amd"
    for index in range(8):
        numa, bus = index // 4, 0x0C + 0x1C * index
        switch = f"pci0000:{bus - 2:02x}/0000:{bus - 2:02x}:01.1/0000:{bus - 1:02x}:00.0"
        host.tree.pci_device(f"0000:{bus:02x}:00.0", switch, numa=numa, kind=AMD)
        host.devices.append(f"0000:{bus:02x}:00.0")
        nic = f"0000:{bus + 4:02x}:00.0"
        behind = host.tree.pci_device(nic, switch, numa=numa, kind=NETWORK)
        address = f"192.168.{index}.{2 * number + 1}/{31 if rails else 24}"
        host.roce(
            f"bnxt_re{index}",
            f"ens{index + 10}np0",
            address,
            behind,
            numa,
            400_000,
            "400 Gb/sec (4X NDR)",
        )
    host.ethernet("eno8303", f"10.9.0.{number}/16", 25_000)
    host.default = "eno8303"
    return host.save()


def a100_roce(root: Path, number: int) -> Recorded:
    """4 GPUs, a RoCE NIC on each NUMA node, and management over a bond that is RoCE as well."""
    host = Recorded(root, number)
    host.vendor = "nvidia"
    a100s(host)
    for numa, bus in enumerate(("4b", "b1")):
        behind = host.tree.pci_device(
            f"0000:{bus}:00.0", f"pci0000:{int(bus, 16) - 1:02x}", numa=numa, kind=NETWORK
        )
        host.roce(
            f"mlx5_{numa}",
            f"ens{numa + 4}np0",
            f"10.5.{numa}.{number}/24",
            behind,
            numa,
            200_000,
            "200 Gb/sec (4X HDR)",
        )
    bond = host.tree.pci_device("0000:31:00.0", "pci0000:30", numa=0, kind=NETWORK)
    for index in range(2):
        host.tree.interface(f"eno{index}np{index}", 25_000, master="bond0", dev_port=str(index))
    host.ethernet("bond0", f"10.9.0.{number}/16", 50_000, uevent="DEVTYPE=bond\nINTERFACE=bond0")
    (host.tree.root / "class/net/bonding_masters").write_text("bond0\n")
    host.tree.port(
        "mlx5_bond_0",
        "eno0np0",
        layer="Ethernet",
        rate="50 Gb/sec (2X EDR)",
        behind=bond,
        gids=roce_gids("bond0", f"10.9.0.{number}"),
    )
    host.default = "bond0"
    return host.save()


def a100_infiniband(root: Path, number: int, subnet: str = DEFAULT_SUBNET) -> Recorded:
    """4 GPUs and one InfiniBand NIC with an address (IPoIB); a 10 Gbit/s management network."""
    host = Recorded(root, number)
    host.vendor = "nvidia"
    a100s(host)
    behind = host.tree.pci_device("0000:4b:00.0", "pci0000:4a", numa=0, kind="0x020700")
    host.infiniband(
        "mlx5_0", "ibs4", behind, 0, "200 Gb/sec (4X HDR)", subnet, f"10.6.0.{number}/24"
    )
    host.ethernet("eno1", f"10.9.0.{number}/16", 10_000)
    host.default = "eno1"
    return host.save()


def a100s(host: Recorded) -> None:
    for index, bus in enumerate(("17", "65", "98", "e3")):
        way = f"pci0000:{int(bus, 16) - 1:02x}"
        host.tree.pci_device(f"0000:{bus}:00.0", way, numa=index // 2, kind=NVIDIA)
        host.devices.append(f"0000:{bus}:00.0")


def cloud(root: Path, number: int) -> Recorded:
    """A virtual machine with one GPU; its network driver reports no speed."""
    host = Recorded(root, number)
    host.vendor = "nvidia"
    host.tree.pci_device("0000:00:1e.0", "pci0000:00", numa=-1, kind=NVIDIA)
    host.devices.append("0000:00:1e.0")
    host.ethernet("ens5", f"172.31.16.{number}/20", -1)
    host.ethernet("docker0", "172.17.0.1/16", -1, state="down")
    host.default = "ens5"
    return host.save()


def laptop(root: Path, number: int) -> Recorded:
    host = Recorded(root, number)
    host.ethernet("enp0s31f6", state="down")
    host.ethernet("wlp0s20f3", f"192.168.1.{number}/24", uevent="DEVTYPE=wlan\nINTERFACE=wlp0s20f3")
    host.ethernet("docker0", "172.17.0.1/16", 10_000)
    host.tree.interface("veth1a2b3c4", 10_000, master="docker0")
    host.ethernet("br-0a1b2c3d4e5f", "172.18.0.1/16", 10_000)
    host.ethernet("tun0", "10.8.0.6/24", 10, kind="65534", state="unknown", tun_flags="0x1001")
    host.default = "wlp0s20f3"
    return host.save()


KINDS: dict[str, Callable[[Path, int], Recorded]] = {
    "dgx_h100": dgx_h100,
    "mi300x": mi300x,
    "a100_roce": a100_roce,
    "a100_infiniband": a100_infiniband,
    "cloud": cloud,
    "laptop": laptop,
}

Make = Callable[..., Recorded]  # make("dgx_h100") makes the next host of that kind
