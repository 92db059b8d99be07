"""`hetcomm topo`: the facts of every rank, islands, networks, and the reasons.

Alone, it shows this machine. As the command of a job (torchrun, srun, mpiexec), all ranks exchange
their facts, and rank 0 prints the whole cluster.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.tree import Tree

from hetcomm import _core, topo_save
from hetcomm.bounded_call import StoreTimeoutError
from hetcomm.pages import print_page
from hetcomm.rendezvous import PrefixStore, job_of, open_store, seconds
from hetcomm.topo_page import (
    add_islands,
    add_zones,
    count,
    describe_zones,
    fabrics,
    is_emulated,
    link_table,
    links_between_islands,
    unreachable_tree,
)
from hetcomm.topo_paths import connect, path_table


@dataclass(frozen=True)
class JobTopology:
    """The topology of a job, and why each host took its NICs.

    explanations: by host, the lines of `_core.explain_nics()`. paths: from each rank to each rank,
    if requested.
    """

    topology: _core.Topology
    explanations: list[list[str]]
    paths: list[list[str]] = field(default_factory=list)


def gather(
    environment: Mapping[str, str], timeout: float, paths: bool = False
) -> JobTopology | None:
    """The topology of the job that `environment` describes; None on every rank but 0.

    timeout: seconds that rank 0 waits for other ranks, and other ranks for the store. paths: also
    connects all ranks, and reports the paths.
    Raises InvalidArgumentError for a broken environment, TimeoutError with the missing ranks, and
    Error with the reason of a rank that cannot probe its machine.
    """
    job = job_of(environment)
    if job is None:
        return assemble([report()])
    end = time.monotonic() + timeout
    store = PrefixStore(open_store(job, environment, timeout), "topo/")
    try:
        mine = report()
        if paths:
            own = PrefixStore(store, "paths/")
            mine["paths"], mine["unreachable"] = connect(own, job.rank, job.size, timeout)
    except _core.Error as error:
        store.set(str(job.rank), dumps({"error": str(error)}).encode())
        raise
    store.set(str(job.rank), dumps(mine).encode())
    if job.rank != 0:
        return None
    reports, missing = collect(store, "", range(job.size), end)
    if missing:
        raise _core.TimeoutError(
            f"expected the facts of {job.size} ranks, none came from {missing} within {timeout:g} "
            "s; check that these ranks run `hetcomm topo` and see their output"
        )
    return assemble([reports[rank] for rank in range(job.size)])


def collect(
    store: _core.Store, prefix: str, ranks: Iterable[int], end: float
) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """[rank] -> its JSON at the key `prefix` and rank, and the ranks without any until `end`.

    end: of the monotonic clock. Raises TimeoutError if the store does not answer.
    """
    found, missing = {}, []
    for rank in ranks:
        try:
            text = store.get(f"{prefix}{rank}", seconds(max(end - time.monotonic(), 0.01)))
        except StoreTimeoutError:
            raise
        except TimeoutError:
            missing.append(rank)
        else:
            found[rank] = loads(text)
    return found, missing


def report() -> dict[str, Any]:
    """The facts that this rank publishes."""
    info = _core.probe_device(_core.probe_rank())
    return {"facts": _core.serialize(info), "explanations": _core.explain_nics()}


def assemble(reports: list[dict[str, Any]]) -> JobTopology:
    for rank, report in enumerate(reports):
        if "error" in report:
            raise _core.Error(f"rank {rank} could not probe its machine: {report['error']}")
    infos = [_core.parse_rank_info(report["facts"]) for report in reports]
    topology = _core.Topology(infos, [tuple(each) for each in reports[0].get("unreachable", [])])
    explanations = [
        list(dict.fromkeys(line for member in members for line in reports[member]["explanations"]))
        for members in topology.hosts
    ]
    return JobTopology(topology, explanations, [report.get("paths", []) for report in reports])


def render(
    topology: _core.Topology, explanations: list[list[str]], paths: list[list[str]] | None = None
) -> RenderableType:
    """The page for people. explanations: by host, the reasons for its NICs."""
    root = Tree(
        f"[bold]{count(len(topology), 'rank')}[/], {count(len(topology.islands), 'island')}, "
        f"{count(len(topology.hosts), 'host')}, fingerprint {topology.fingerprint:016x}"
    )
    add_islands(root, topology)
    add_zones(root, topology)
    parts: list[RenderableType] = [root]
    links = links_between_islands(topology)
    if links:
        parts.append(link_table(links))
    if topology.unreachable:
        parts.append(unreachable_tree(topology))
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
            "name", "interface", "bandwidth", "bandwidth_known", "numa", "address", "subnet", "gid",
        )  # fmt: skip
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
            "direct_bytes": info.direct_bytes,
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
        "zones": describe_zones(topology),
        "links": [
            {
                "islands": list(link.islands),
                "fabric": link.fabric,
                "bandwidth": link.bandwidth,
                "staged": list(link.staged),
                "nics": list(link.nics),
            }
            for link in links_between_islands(topology)
        ],
        "unjoined": [list(each) for each in topology.unreachable],
        "paths": [row for row in paths or [] if row],
    }


def topo(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for other ranks.")] = 60.0,
    paths: Annotated[
        bool, typer.Option("--paths", help="Connect all ranks, and show the paths of messages.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the cluster file of the job, for plan and emulate.")
    ] = None,
) -> None:
    """Show ranks, islands, hosts and NICs, with the reason for each NIC."""
    found = gather(os.environ, timeout, paths)
    if found is None:
        return
    if save is not None:
        topo_save.save(found.topology, save)
    if json:
        typer.echo(dumps(describe(found.topology, found.explanations, found.paths), indent=2))
    else:
        print_page(Console(), render(found.topology, found.explanations, found.paths))
