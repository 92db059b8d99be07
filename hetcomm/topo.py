"""`hetcomm topo`: what every rank found, how they group, which networks they use, and why.

Run alone, it shows this machine. Run where RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set,
as torchrun sets them, all ranks exchange their facts and rank 0 prints the whole cluster.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from json import dumps, loads
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.tree import Tree

from hetcomm import _core
from hetcomm.topo_page import (
    count,
    fabrics,
    is_emulated,
    island_tree,
    link_table,
    links_between_islands,
)
from hetcomm.topo_paths import TorchStore, connect, path_table

PREFIX = "hetcomm/topo"


@dataclass(frozen=True)
class Cluster:
    """The facts of all ranks, and for each host the lines of `_core.explain_nics()`.

    paths: from each rank to each, where they were asked for.
    """

    topology: _core.Topology
    explanations: list[list[str]]
    paths: list[list[str]] = field(default_factory=list)


def gather(environment: Mapping[str, str], timeout: float, paths: bool = False) -> Cluster | None:
    """The cluster of the job that `environment` describes; None on every rank but 0.

    timeout: seconds rank 0 waits for the others, and the others for the store. paths: connects all
    ranks, and finds out how.
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
        if paths:
            mine["paths"] = connect(TorchStore(store, f"{prefix}/paths/"), rank, world, timeout)
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
    info = _core.probe_device(_core.probe_rank())
    return {"facts": _core.serialize(info), "explanations": _core.explain_nics()}


def assemble(reports: list[dict[str, Any]]) -> Cluster:
    for rank, report in enumerate(reports):
        if "error" in report:
            raise _core.Error(f"rank {rank} could not probe its machine: {report['error']}")
    topology = _core.Topology([_core.parse_rank_info(report["facts"]) for report in reports])
    explanations = [
        list(dict.fromkeys(line for member in members for line in reports[member]["explanations"]))
        for members in topology.hosts
    ]
    return Cluster(topology, explanations, [report.get("paths", []) for report in reports])


def render(
    topology: _core.Topology, explanations: list[list[str]], paths: list[list[str]] | None = None
) -> RenderableType:
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
    if paths and any(paths):
        parts.append(path_table(paths))
    why = Tree("[bold]Why each NIC was taken or left out[/]")
    for host, lines in enumerate(explanations):
        branch = why.add(f"host {host}: {escape(topology.rank(topology.hosts[host][0]).host_name)}")
        for line in lines:
            branch.add(escape(line))
    parts.append(why)
    return Group(*parts)


def describe(
    topology: _core.Topology, explanations: list[list[str]], paths: list[list[str]] | None = None
) -> dict[str, Any]:
    """The same facts for programs; bandwidths in bytes per second and direction."""

    def describe_nic(nic: _core.Nic) -> dict[str, Any]:
        fields = (
            "name",
            "interface",
            "bandwidth",
            "bandwidth_known",
            "numa",
            "address",
            "subnet",
            "gid",
        )
        return {field: getattr(nic, field) for field in fields} | {"fabric": nic.fabric.name}

    def describe_rank(rank: int) -> dict[str, Any]:
        info = topology.rank(rank)
        return {
            "rank": rank,
            "island": topology.island_of(rank),
            "host": topology.host_of(rank),
            "vendor": info.vendor,
            "label": info.island,
            "memory": info.memory.name,
            "direct": [fabric.name for fabric in fabrics(info)],
            "kernels": info.kernels,
            "device": info.device,
            "ccl": info.ccl,
            "emulated": is_emulated(info),
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

    def describe_network(index: int) -> dict[str, Any]:
        network = topology.island_network(index)
        return {
            "island": index,
            "fabric": network.fabric.name,
            "why": network.why,
            "members": [
                {"devices": member.devices, "gid": member.gid, "interface": member.interface}
                for member in network.members
            ],
        }

    return {
        "fingerprint": f"{topology.fingerprint:016x}",
        "islands": topology.islands,
        "networks": [describe_network(index) for index in range(len(topology.islands))],
        "hosts": [describe_host(host) for host in range(len(topology.hosts))],
        "ranks": [describe_rank(rank) for rank in range(len(topology))],
        "links": [
            {
                "islands": list(link.islands),
                "fabric": link.fabric,
                "bandwidth": link.bandwidth,
                "staged": list(link.staged),
            }
            for link in links_between_islands(topology)
        ],
        "paths": [row for row in paths or [] if row],
    }


def topo(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for other ranks.")] = 60.0,
    paths: Annotated[
        bool, typer.Option("--paths", help="Connect all ranks, and show what carries messages.")
    ] = False,
) -> None:
    """Show ranks, islands, hosts and NICs, and why each NIC was taken or left out."""
    cluster = gather(os.environ, timeout, paths)
    if cluster is None:
        return
    if json:
        typer.echo(dumps(describe(*vars(cluster).values()), indent=2))
    else:
        Console().print(render(*vars(cluster).values()))


if __name__ == "__main__":
    try:
        typer.run(topo)
    except _core.Error as error:
        sys.exit(f"hetcomm topo: {error}")
