"""Text of `hetcomm topo` on islands, their networks and links."""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from hetcomm import _core

# Branches of a page. More islands or hosts of one kind share a branch.
MOST_SHOWN = 16


@dataclass(frozen=True)
class IslandLink:
    """The connection of two islands.

    bandwidth: bytes per second and direction, None in one host. staged: by end, whether messages of
    device memory pass through host memory. nics: by end, NICs that messages use together; empty for
    one NIC.
    """

    islands: tuple[int, int]
    fabric: str
    bandwidth: int | None
    staged: tuple[bool, bool]
    nics: tuple[list[str], list[str]] = ([], [])


def links_between_islands(topology: _core.Topology) -> list[IslandLink]:
    """Links over the best fabric of the hosts' first ranks, at the uplink of the weaker island."""
    islands = topology.islands
    uplinks = [sum(map(topology.uplink, members)) for members in islands]
    speakers = [
        list({topology.host_of(member): member for member in reversed(members)}.values())
        for members in islands
    ]
    links = []
    for a, b in combinations(range(len(islands)), 2):
        pairs = list(product(speakers[a], speakers[b]))
        fabric = min((topology.fabric_between(x, y) for x, y in pairs), key=int)
        bandwidth = None if fabric == _core.Fabric.shm else min(uplinks[a], uplinks[b])
        staged = (
            any(topology.staged(x, y) for x, y in pairs),
            any(topology.staged(y, x) for x, y in pairs),
        )
        nics = max((nic_names(topology, x, y) for x, y in pairs), key=lambda names: len(names[0]))
        links.append(IslandLink((a, b), fabric.name, bandwidth, staged, nics))
    return links


def nic_names(topology: _core.Topology, a: int, b: int) -> tuple[list[str], list[str]]:
    """By end, the NICs that messages between the ranks use together, or the remaining one of them.
    Empty if one NIC is enough."""
    rails, ends = topology.rails(a, b), (topology.rank(a).nics, topology.rank(b).nics)
    return [ends[0][rail.own].name for rail in rails], [ends[1][rail.peer].name for rail in rails]


def link_table(links: list[IslandLink]) -> Table:
    """One row for all links of one kind, which keeps big clusters readable."""
    table = Table(title="Links between islands", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("islands")
    for column in ("fabric", "bandwidth", "staged in host memory"):
        table.add_column(column, no_wrap=True)
    alike: dict[tuple[str, int | None, tuple[bool, bool]], list[str]] = {}
    for link in links:
        name = f"{link.islands[0]} - {link.islands[1]}"
        kind = link.fabric
        if link.nics[0]:
            several = len(link.nics[0]) > 1
            kind += f", {len(link.nics[0])} NICs together" if several else f", {link.nics[0][0]}"
        alike.setdefault((kind, link.bandwidth, link.staged), []).append(name)
    ends = {
        (False, False): "at no end",
        (True, False): "at the first end",
        (False, True): "at the second end",
        (True, True): "at both ends",
    }
    for (fabric, bandwidth, staged), names in alike.items():
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        bandwidth_text = format_bandwidth(bandwidth)
        table.add_row(", ".join(names[:8]) + more, fabric, bandwidth_text, ends[staged])
    return table


def unreachable_tree(topology: _core.Topology) -> Tree:
    """NICs left out because their network does not join them."""
    tree = Tree("[bold]NICs that do not reach each other[/]")
    for network, address, other in topology.unreachable:
        if other == "" or address < other:  # the reverse order is listed too
            tree.add(f"{address} - {other or 'any rank'}, of network {network}")
    return tree


def format_bandwidth(bandwidth: int | None) -> str:
    return "memory" if bandwidth is None else f"{bandwidth * 8 / 1e9:.4g} Gbit/s"


def format_ranks(ranks: list[int], noun: str = "rank") -> str:
    """[0, 1, 2, 5] -> "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    more = f" and {count(len(parts) - MOST_SHOWN, 'more run')}" if len(parts) > MOST_SHOWN else ""
    return f"{noun}{'' if len(ranks) == 1 else 's'} {', '.join(parts[:MOST_SHOWN])}{more}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def nic_line(nic: _core.Nic) -> str:
    behind = f" ({escape(nic.interface)})" if nic.interface not in ("", nic.name) else ""
    known = "" if nic.bandwidth_known else " (assumed)"
    numa = f", NUMA node {nic.numa}" if nic.numa >= 0 else ""
    gid = f", GID {nic.gid}" if nic.gid >= 0 else ""
    infiniband = nic.fabric == _core.Fabric.infiniband
    kind = "subnet" if infiniband else "network"
    subnet = f", {kind} {escape(nic.subnet)}" if nic.subnet else ""
    return (
        f"{escape(nic.name)}{behind}: [bold]{nic.fabric.name}[/], "
        f"{format_bandwidth(nic.bandwidth)}{known}{numa}, "
        f"{escape(nic.address) or 'no IP address'}{gid}{subnet}"
    )


def is_emulated(info: _core.RankInfo) -> bool:
    """Whether the rank's device or native library reports that it is emulated."""
    return any("emulated" in text for text in (info.device, info.ccl, *info.libraries.values()))


def memory_text(info: _core.RankInfo) -> str:
    if info.memory == _core.Memory.host:
        return "host memory"
    if not info.direct:
        return "device memory, staged in host memory for messages"
    return f"device memory, sent directly over {direct_text(info)}"


def direct_text(info: _core.RankInfo) -> str:
    """ "shm from 2 MiB on, roce"."""
    names = [fabric.name for fabric in fabrics(info)]
    if "shm" in names and info.direct_bytes > 0:
        names[names.index("shm")] += f" from {_core.format_bytes(info.direct_bytes)} on"
    return ", ".join(names)


def fabrics(info: _core.RankInfo) -> list[_core.Fabric]:
    """Fabrics of direct messages from its device memory, in a fixed order."""
    return sorted(info.direct, key=int)


def engine_line(topology: _core.Topology, index: int) -> str:
    infos = [topology.rank(member) for member in topology.islands[index]]
    if infos[0].memory == _core.Memory.host:
        return f"engine: shared memory, on {memory_text(infos[0])}"
    memory = "; some on ".join(dict.fromkeys(map(memory_text, infos)))
    kernels = "on the device" if all(info.kernels for info in infos) else "on the host"
    engine = escape(infos[0].ccl) or "native library"
    return f"engine: {engine}, on {memory}; bridge reduces and encodes {kernels}"


def member_line(topology: _core.Topology, index: int, members: list[int]) -> str:
    """The NICs that the native library gets on one host; "" without any."""
    network = topology.island_network(index)
    chosen = [network.members[topology.index_in_island(member)] for member in members]
    devices = sorted({device for member in chosen for device in member.devices}, key=_natural)
    if not devices:
        return ""
    gids = sorted({member.gid for member in chosen if member.gid >= 0})
    gid = f", GID {', '.join(map(str, gids))}" if gids else ""
    interfaces = dict.fromkeys(member.interface for member in chosen if member.interface)
    meets = f", connects through {escape(', '.join(interfaces))}" if interfaces else ""
    return f"uses {escape(', '.join(devices))}{gid}{meets}"


def _natural(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def own_line(info: _core.RankInfo) -> str:
    """The device of a rank, which may differ between ranks of one line; "" for host memory."""
    if not info.device:
        return ""
    nearest = f", nearest NIC {escape(info.nics[0].name)}" if info.nics else ""
    return escape(info.device) + nearest


def _alike(info: _core.RankInfo) -> _core.RankInfo:
    """Equal for ranks that differ at most in their device and in the order of their NICs."""
    same = _core.parse_rank_info(_core.serialize(info))
    same.device = ""
    same.nics = sorted(same.nics, key=lambda nic: _natural(nic.name))
    return same


def _kind_of_host(topology: _core.Topology, members: list[int]) -> Hashable:
    """Equal for members of hosts that differ in names, addresses and zones alone."""
    kinds = []
    for member in members:
        info = _alike(topology.rank(member))
        info.host = info.host_name = info.machine = info.zone = ""
        info.nics = [_unnamed(nic) for nic in info.nics]
        kinds.append((_core.serialize(info), topology.uplink(member)))
    return topology.host_bandwidth(topology.host_of(members[0])), *kinds


def _unnamed(nic: _core.Nic) -> _core.Nic:
    nic.address, nic.gid = "", -1
    return nic


def _by_host(topology: _core.Topology, members: list[int]) -> dict[int, list[int]]:
    """[host] -> those of the members."""
    hosts: dict[int, list[int]] = {}
    for member in members:
        hosts.setdefault(topology.host_of(member), []).append(member)
    return hosts


def _kind_of_island(topology: _core.Topology, index: int, members: list[int]) -> Hashable:
    network = topology.island_network(index)
    hosts = _by_host(topology, members).values()
    return network.fabric.name, *(_kind_of_host(topology, members) for members in hosts)


def _folded(numbers: list[int], kind: Callable[[int], Hashable]) -> list[list[int]]:
    """Numbers that share a branch: up to MOST_SHOWN have one each, more share one of their kind."""
    if len(numbers) <= MOST_SHOWN:
        return [[number] for number in numbers]
    kinds: dict[Hashable, list[int]] = {}
    for number in numbers:
        kinds.setdefault(kind(number), []).append(number)
    return list(kinds.values())


def add_islands(tree: Tree, topology: _core.Topology) -> None:
    """A branch for each island, or for each kind of many islands."""
    islands = topology.islands
    kinds = _folded(
        list(range(len(islands))), lambda index: _kind_of_island(topology, index, islands[index])
    )
    for first, *others in kinds[:MOST_SHOWN]:
        island = island_tree(topology, first)
        if others:
            island.add(f"[bold]alike[/]: {format_ranks(others, 'island')}")
        tree.add(island)
    if len(kinds) > MOST_SHOWN:
        tree.add(count(sum(map(len, kinds[MOST_SHOWN:])), "more island"))


def add_zones(tree: Tree, topology: _core.Topology) -> None:
    """A branch for each zone, or for each kind of many zones, with the zones inside."""
    levels = topology.zones

    def inside(around: set[int], level: int) -> list[int]:
        zones = levels[level] if level < len(levels) else []
        return [number for number, zone in enumerate(zones) if zone.hosts[0] in around]

    def kind(number: int, level: int) -> Hashable:
        zone = levels[level][number]
        inner = [kind(one, level + 1) for one in inside(set(zone.hosts), level + 1)]
        return zone.uplink, len(zone.hosts), tuple(inner)

    def add(tree: Tree, around: set[int], level: int) -> None:
        kinds = _folded(inside(around, level), lambda number: kind(number, level))
        for first, *others in kinds[:MOST_SHOWN]:
            zone = levels[level][first]
            uplink = format_bandwidth(zone.uplink) if zone.uplink else "of unknown rate"
            hosts = format_ranks(zone.hosts, "host")
            branch = tree.add(f"[bold]zone {escape(zone.name)}[/]: {hosts}, uplink {uplink}")
            if others:
                names = [escape(levels[level][other].name) for other in others[:MOST_SHOWN]]
                more = len(others) - len(names)
                branch.add(
                    f"[bold]alike[/]: {', '.join(names)}" + (f", {more} more" if more else "")
                )
            add(branch, set(zone.hosts), level + 1)
        if len(kinds) > MOST_SHOWN:
            tree.add(count(sum(map(len, kinds[MOST_SHOWN:])), "more zone"))

    add(tree, set(range(len(topology.hosts))), 0)


def describe_zones(topology: _core.Topology) -> list[dict[str, Any]]:
    """For programs; uplink: bytes per second and direction, None if unknown."""
    return [
        {"level": level, "name": zone.name, "uplink": zone.uplink or None, "hosts": zone.hosts}
        for level, zones in enumerate(topology.zones)
        for zone in zones
    ]


def island_tree(topology: _core.Topology, index: int) -> Tree:
    """Island > host > ranks > NICs; ranks that found the same share a line. Many hosts of a kind
    share a branch."""
    members = topology.islands[index]
    first = topology.rank(members[0])
    label = f' "{escape(first.island)}"' if first.island else ""
    emulated = (
        " (emulated)" if any(is_emulated(topology.rank(member)) for member in members) else ""
    )
    tree = Tree(
        f"[bold]island {index}[/]{label}: {escape(first.vendor)}{emulated}, {format_ranks(members)}"
    )
    tree.add(engine_line(topology, index))
    network = topology.island_network(index)
    tree.add(f"network: [bold]{network.fabric.name}[/], {escape(network.why)}")
    hosts = _by_host(topology, members)
    kinds = _folded(list(hosts), lambda host: _kind_of_host(topology, hosts[host]))
    for host, *others in kinds[:MOST_SHOWN]:
        here = hosts[host]
        branch = tree.add(
            f"host {host}: {escape(topology.rank(here[0]).host_name)}, "
            f"{format_bandwidth(topology.host_bandwidth(host))} to other hosts"
        )
        if uses := member_line(topology, index, here):
            branch.add(uses)
        alike: dict[str, list[int]] = {}
        for member in here:
            alike.setdefault(_core.serialize(_alike(topology.rank(member))), []).append(member)
        for group in alike.values():
            info = topology.rank(group[0])
            each = " each" if len(group) > 1 else ""
            leaf = branch.add(
                f"{format_ranks(group)}: {count(info.cores, 'core')}, "
                f"uplink {format_bandwidth(topology.uplink(group[0]))}{each}"
            )
            for member in group:
                if own := own_line(topology.rank(member)):
                    leaf.add(f"rank {member}: {own}")
            for nic in sorted(info.nics, key=lambda nic: int(nic.fabric)):
                leaf.add(nic_line(nic))
            for library, version in info.libraries.items():
                leaf.add(f"{escape(library)} {escape(version)}")
        if others:
            branch.add(f"[bold]alike[/]: {format_ranks(others, 'host')}")
    if len(kinds) > MOST_SHOWN:
        tree.add(count(sum(map(len, kinds[MOST_SHOWN:])), "more host"))
    return tree
