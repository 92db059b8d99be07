"""`hetcomm topo`: what every rank found, how they group, and why each NIC was taken or left out.

Run alone, it shows this machine. Run where RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set,
as torchrun sets them, all ranks exchange their facts and rank 0 prints the whole cluster.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations, product
from json import dumps, loads
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from hetcomm import _core

PREFIX = "hetcomm/topo"


@dataclass(frozen=True)
class Cluster:
    """The facts of all ranks, and for each host the lines of `_core.explain_nics()`."""

    topology: _core.Topology
    explanations: list[list[str]]


def gather(environment: Mapping[str, str], timeout: float) -> Cluster | None:
    """The cluster of the job that `environment` describes; None on every rank but 0.

    timeout: seconds rank 0 waits for the others, and the others for the store.
    Raises InvalidArgumentError for a broken environment, TimeoutError naming the ranks that did not
    report, and Error with what a rank said that could not probe its machine.
    """
    if "WORLD_SIZE" not in environment:
        return assemble([report()])
    rank, world, address, port = job_of(environment)
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise _core.Error(
            "WORLD_SIZE is set, and the exchange between ranks needs torch.distributed's TCPStore; "
            "install torch, or unset WORLD_SIZE to see this machine alone"
        ) from error

    # torchrun's agent already serves a store at that port; other launchers leave it to rank 0.
    is_served = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    limit = timedelta(seconds=timeout)
    try:
        store = TCPStore(
            address, port, world, rank == 0 and not is_served, limit, wait_for_workers=False
        )
    except (RuntimeError, ValueError) as error:
        raise _core.TransportError(
            f"rank {rank} found no store at {address}:{port} within {timeout:g} s; check "
            f"MASTER_ADDR and MASTER_PORT, that rank 0 runs, and that no firewall is in between "
            f"({str(error).splitlines()[0]})"
        ) from error
    prefix = f"{PREFIX}/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    keys = [f"{prefix}/{other}" for other in range(world)]
    try:
        mine = report()
    except _core.Error as error:
        store.set(keys[rank], dumps({"error": str(error)}))
        raise
    store.set(keys[rank], dumps(mine))
    if rank != 0:
        return None
    try:
        store.wait(keys, limit)
    except RuntimeError as error:
        missing = [other for other, key in enumerate(keys) if not store.check([key])]
        raise _core.TimeoutError(
            f"expected the facts of {world} ranks, none came from {missing} within {timeout:g} s; "
            "check that these ranks run `hetcomm topo` and see their output"
        ) from error
    return assemble([loads(store.get(key)) for key in keys])


def job_of(environment: Mapping[str, str]) -> tuple[int, int, str, int]:
    """Rank, world size, store address and port; raises InvalidArgumentError."""
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        raise _core.InvalidArgumentError(
            f"WORLD_SIZE is set, but not {', '.join(missing)}; start with torchrun, set them, or "
            "unset WORLD_SIZE to see this machine alone"
        )
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not environment[name].isdecimal():
            raise _core.InvalidArgumentError(
                f'{name}: expected a number, got "{environment[name]}"'
            )
        numbers[name] = int(environment[name])
    rank, world, port = numbers["RANK"], numbers["WORLD_SIZE"], numbers["MASTER_PORT"]
    if not rank < world:
        raise _core.InvalidArgumentError(f"expected RANK below WORLD_SIZE, got {rank} and {world}")
    if not 0 < port < 65536:
        raise _core.InvalidArgumentError(f"MASTER_PORT: expected 1 to 65535, got {port}")
    return rank, world, environment["MASTER_ADDR"], port


def report() -> dict[str, Any]:
    """What this rank tells the others."""
    return {"facts": _core.serialize(_core.probe_rank()), "explanations": _core.explain_nics()}


def assemble(reports: list[dict[str, Any]]) -> Cluster:
    for rank, report in enumerate(reports):
        if "error" in report:
            raise _core.Error(f"rank {rank} could not probe its machine: {report['error']}")
    topology = _core.Topology([_core.parse_rank_info(report["facts"]) for report in reports])
    explanations = [
        list(dict.fromkeys(line for member in members for line in reports[member]["explanations"]))
        for members in topology.hosts
    ]
    return Cluster(topology, explanations)


@dataclass(frozen=True)
class IslandLink:
    """What connects two islands. bandwidth: bytes per second and direction, None in one host."""

    islands: tuple[int, int]
    fabric: str
    bandwidth: int | None


def links_between_islands(topology: _core.Topology) -> list[IslandLink]:
    """The best fabric that their hosts' first ranks share, at the uplink of the weaker island."""
    islands = topology.islands
    uplinks = [sum(map(topology.uplink, members)) for members in islands]
    speakers = [
        list({topology.host_of(member): member for member in reversed(members)}.values())
        for members in islands
    ]
    links = []
    for a, b in combinations(range(len(islands)), 2):
        pairs = product(speakers[a], speakers[b])
        fabric = min((topology.fabric_between(x, y) for x, y in pairs), key=int)
        bandwidth = None if fabric == _core.Fabric.shm else min(uplinks[a], uplinks[b])
        links.append(IslandLink((a, b), fabric.name, bandwidth))
    return links


def link_table(links: list[IslandLink]) -> Table:
    """One row for all links of one kind, so that big clusters stay readable."""
    table = Table(title="Links between islands", title_justify="left")
    for column in ("islands", "fabric", "bandwidth"):
        table.add_column(column)
    alike: dict[tuple[str, int | None], list[str]] = {}
    for link in links:
        name = f"{link.islands[0]} - {link.islands[1]}"
        alike.setdefault((link.fabric, link.bandwidth), []).append(name)
    for (fabric, bandwidth), names in alike.items():
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        table.add_row(", ".join(names[:8]) + more, fabric, format_bandwidth(bandwidth))
    return table


def format_bandwidth(bandwidth: int | None) -> str:
    return "memory" if bandwidth is None else f"{bandwidth * 8 / 1e9:.4g} Gbit/s"


def format_ranks(ranks: list[int]) -> str:
    """[0, 1, 2, 5] -> "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def nic_line(nic: _core.Nic) -> str:
    behind = f" ({escape(nic.interface)})" if nic.interface not in ("", nic.name) else ""
    known = "" if nic.bandwidth_known else " (assumed)"
    numa = f", NUMA node {nic.numa}" if nic.numa >= 0 else ""
    return (
        f"{escape(nic.name)}{behind}: [bold]{nic.fabric.name}[/], "
        f"{format_bandwidth(nic.bandwidth)}{known}{numa}, {escape(nic.address) or 'no IP address'}"
    )


def island_tree(topology: _core.Topology, index: int) -> Tree:
    """Island > host > ranks > NICs; ranks that found the same share a line."""
    members = topology.islands[index]
    vendor = escape(topology.rank(members[0]).vendor)
    tree = Tree(f"[bold]island {index}[/]: {vendor}, {format_ranks(members)}")
    for host in dict.fromkeys(map(topology.host_of, members)):
        here = [member for member in members if topology.host_of(member) == host]
        branch = tree.add(
            f"host {host}: {escape(topology.rank(here[0]).host_name)}, "
            f"{format_bandwidth(topology.host_bandwidth(host))} to other hosts"
        )
        alike: dict[str, list[int]] = {}
        for member in here:
            alike.setdefault(_core.serialize(topology.rank(member)), []).append(member)
        for group in alike.values():
            info = topology.rank(group[0])
            each = " each" if len(group) > 1 else ""
            leaf = branch.add(
                f"{format_ranks(group)}: {count(info.cores, 'core')}, "
                f"uplink {format_bandwidth(topology.uplink(group[0]))}{each}"
            )
            for nic in info.nics:
                leaf.add(nic_line(nic))
            for library, version in info.libraries.items():
                leaf.add(f"{escape(library)} {escape(version)}")
    return tree


def render(topology: _core.Topology, explanations: list[list[str]]) -> RenderableType:
    """The page for people. explanations: for each host, why its NICs were taken or left out."""
    root = Tree(
        f"[bold]{count(len(topology), 'rank')}[/], {count(len(topology.islands), 'island')}, "
        f"{count(len(topology.hosts), 'host')}, fingerprint {topology.fingerprint:016x}"
    )
    for index in range(len(topology.islands)):
        root.add(island_tree(topology, index))
    parts: list[RenderableType] = [root]
    links = links_between_islands(topology)
    if links:
        parts.append(link_table(links))
    why = Tree("[bold]Why each NIC was taken or left out[/]")
    for host, lines in enumerate(explanations):
        branch = why.add(f"host {host}: {escape(topology.rank(topology.hosts[host][0]).host_name)}")
        for line in lines:
            branch.add(escape(line))
    parts.append(why)
    return Group(*parts)


def describe(topology: _core.Topology, explanations: list[list[str]]) -> dict[str, Any]:
    """The same facts for programs; bandwidths in bytes per second and direction."""

    def describe_nic(nic: _core.Nic) -> dict[str, Any]:
        fields = ("name", "interface", "bandwidth", "bandwidth_known", "numa", "address")
        return {field: getattr(nic, field) for field in fields} | {"fabric": nic.fabric.name}

    def describe_rank(rank: int) -> dict[str, Any]:
        info = topology.rank(rank)
        return {
            "rank": rank,
            "island": topology.island_of(rank),
            "host": topology.host_of(rank),
            "vendor": info.vendor,
            "cores": info.cores,
            "uplink": topology.uplink(rank),
            "nics": [describe_nic(nic) for nic in info.nics],
            "libraries": info.libraries,
        }

    def describe_host(host: int) -> dict[str, Any]:
        members = topology.hosts[host]
        info = topology.rank(members[0])
        return {
            "identity": info.host,
            "name": info.host_name,
            "ranks": members,
            "bandwidth": topology.host_bandwidth(host),
            "explanations": explanations[host],
        }

    return {
        "fingerprint": f"{topology.fingerprint:016x}",
        "islands": topology.islands,
        "hosts": [describe_host(host) for host in range(len(topology.hosts))],
        "ranks": [describe_rank(rank) for rank in range(len(topology))],
        "links": [
            {"islands": list(link.islands), "fabric": link.fabric, "bandwidth": link.bandwidth}
            for link in links_between_islands(topology)
        ],
    }


def topo(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for other ranks.")] = 60.0,
) -> None:
    """Show ranks, islands, hosts and NICs, and why each NIC was taken or left out."""
    cluster = gather(os.environ, timeout)
    if cluster is None:
        return
    if json:
        typer.echo(dumps(describe(cluster.topology, cluster.explanations), indent=2))
    else:
        Console().print(render(cluster.topology, cluster.explanations))


if __name__ == "__main__":
    try:
        typer.run(topo)
    except _core.Error as error:
        sys.exit(f"hetcomm topo: {error}")
