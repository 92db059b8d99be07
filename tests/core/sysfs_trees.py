"""Writes the parts of sysfs that describe a machine: class/net, class/infiniband and bus/pci."""

from dataclasses import dataclass
from pathlib import Path

from hetcomm._core import Machine


@dataclass
class Sysfs:
    """A tree like class/net and class/infiniband of a machine."""

    root: Path

    def interface(
        self,
        name: str,
        speed: int | None = None,
        *,
        state: str = "up",
        kind: int = 1,
        numa: int | None = None,
        master: str = "",
        **attributes: str,
    ) -> None:
        """`speed` is in Mbit/s, None if it cannot be read. `kind` is as in linux/if_arp.h."""
        folder = self.root / "class/net" / name
        attributes |= {"operstate": state, "type": str(kind)}
        attributes.setdefault("flags", "0x1003")
        if speed is not None:
            attributes["speed"] = str(speed)
        self.write(folder, attributes)
        if numa is not None:
            self.write(folder / "device", {"numa_node": str(numa)})
        if master:
            (folder / "master").symlink_to(f"../{master}")

    def port(
        self,
        device: str,
        interface: str = "",
        *,
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "InfiniBand",
        state: str = "4: ACTIVE",
        numa: int = 0,
        port: int = 1,
        node: str = "1: CA",
        gids: dict[str, tuple[str, str, str]] | None = None,
        behind: Path | None = None,
    ) -> None:
        """`gids` has the GID, its type and its interface by index. `behind` is the port's PCI
        device."""
        folder = self.root / "class/infiniband" / device
        self.write(folder, {"node_type": node})
        if behind is not None and not (folder / "device").exists():
            (folder / "device").symlink_to(behind)
        self.write(folder / "device", {"numa_node": str(numa)})
        facts = {"link_layer": layer, "state": state, "rate": rate, "phys_state": "5: LinkUp"}
        self.write(folder / f"ports/{port}", facts)
        if interface:
            (folder / "device/net" / interface).mkdir(parents=True, exist_ok=True)
        gids = gids or {}
        ports = folder / f"ports/{port}"
        self.write(ports / "gids", {index: gid for index, (gid, _, _) in gids.items()})
        self.write(ports / "gid_attrs/types", {index: kind for index, (_, kind, _) in gids.items()})
        self.write(ports / "gid_attrs/ndevs", {index: net for index, (_, _, net) in gids.items()})

    def pci_device(self, bus: str, way: str, *, numa: int, kind: str) -> Path:
        """A device behind `way`, "pci0000:15/0000:15:01.0". `kind` is its class, "0x030200"."""
        folder = self.root / "devices" / way / bus
        self.write(folder, {"numa_node": str(numa), "class": kind})
        link = self.root / "bus/pci/devices" / bus
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return folder

    def write(self, folder: Path, attributes: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in attributes.items():
            (folder / name).write_text(value + "\n")

    def machine(self, addresses: dict[str, str], **sources: object) -> Machine:
        return Machine(str(self.root), addresses | {"lo": "127.0.0.1"}, **sources)


def mapped(address: str) -> str:
    """The GID of an IPv4 address, as the kernel writes it."""
    a, b, c, d = map(int, address.split("/")[0].split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def roce_gids(interface: str, address: str) -> dict[str, tuple[str, str, str]]:
    """The table of a mlx5 port: the GIDs of the link-local address, then those of the address."""
    local = "fe80:0000:0000:0000:0e42:a1ff:fe65:8c2a"
    table = [local, local, *([mapped(address)] * 2 if address else [])]
    kinds = ("IB/RoCE v1", "RoCE v2")
    return {str(i): (gid, kinds[i % 2], interface) for i, gid in enumerate(table)}
