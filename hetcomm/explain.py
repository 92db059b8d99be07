"""`hetcomm explain`: the plan of a collective, the reason for its choice, and its predicted cost.

The topology is that of a cluster file or of --islands, else of the job if torchrun's variables are
set, else this machine with one rank per core.
"""

import os
import re
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from hetcomm import _core, topo, topo_page
from hetcomm.bench.case import KINDS, unknown
from hetcomm.bench.table import number_table
from hetcomm.emulate import ClusterError, cluster
from hetcomm.explain_plan import Explanation, Saving, describe, explanation
from hetcomm.files import link_profile

# The assumed rate of an unshaped port.
UNSHAPED_BYTES_PER_SECOND = 1_250_000_000
_ISLANDS = re.compile(r"(?:(?P<number>[1-9]\d{0,8})x)?(?P<ranks>[1-9]\d{0,8})", re.ASCII)


def topology_of(described: cluster.Cluster) -> _core.Topology:
    """The topology that ranks of an emulated cluster would find, with one core each."""
    facts = [_facts(described, place) for place in range(len(described.hosts))]
    return _core.Topology([facts[place] for place in described.placement])


def _facts(described: cluster.Cluster, place: int) -> _core.RankInfo:
    """Of each rank of the host."""
    host = described.hosts[place]

    def nic_of(index: int, nic: cluster.Nic) -> _core.Nic:
        ethernet = nic.fabric == "ethernet"
        return _core.Nic(
            name=f"eth{index}",
            interface=f"eth{index}",
            fabric=_core.fabric_from_name(nic.fabric),
            bandwidth=nic.slower // 8 if nic.slower is not None else UNSHAPED_BYTES_PER_SECOND,
            bandwidth_known=True,
            numa=nic.numa,
            address=described.address(place, index) if ethernet else "",
            subnet=described.subnet(index) if ethernet else "",
        )

    nics = sorted(
        (nic_of(index, nic) for index, nic in enumerate(host.nics)),
        key=lambda nic: nic.bandwidth,
        reverse=True,
    )
    info = _core.RankInfo(
        host=host.name,
        host_name=host.name,
        vendor=host.vendor,
        cores=host.ranks,
        nics=nics,
        rails=True,
        zone=described.zone_label(place),
    )
    if host.vendor in cluster.GPU_VENDORS:
        info.memory = _core.Memory.device
        fabrics = {_core.Fabric.shm, *(nic.fabric for nic in nics)} - {_core.Fabric.ethernet}
        info.direct = fabrics if host.direct else set()
        info.direct_bytes = _core.least_direct_bytes() if host.direct else 0
        over = topo_page.direct_text(info)
        messages = f"direct over {over}" if over else "staged: the file does not say direct"
        info.libraries = {"messages": messages}
        info.kernels = os.environ.get("HETCOMM_KERNELS", "1") != "0"
        if not info.kernels:
            info.libraries |= {"kernels": "HETCOMM_KERNELS=0"}
    return info


def islands_of(sizes: str, bandwidth: str, order: str) -> cluster.Cluster:
    """ "2+2", "2x2" -> two hosts of two ranks, each with one port of this bandwidth."""
    islands: list[int] = []
    for part in sizes.split("+"):
        match = _ISLANDS.fullmatch(part)
        if match is None or int(match["number"] or 1) > cluster.MOST_HOSTS:
            raise _core.InvalidArgumentError(
                f'--islands: expected sizes such as "2+2", or "16x8" for 16 islands of 8; got '
                f'"{sizes}"; give ranks, and at most {cluster.MOST_HOSTS} islands'
            )
        islands += [int(match["ranks"])] * int(match["number"] or 1)
    port = (cluster.Nic(rate := cluster.parse_rate(bandwidth, "--bandwidth"), rate),)
    hosts = (cluster.Host(f"host{index}", ranks, port) for index, ranks in enumerate(islands))
    return cluster.Cluster(tuple(hosts), order=cluster.parse_order(order))


def spec_of(
    collective: str, size: int, ranks: int, dtype: str = "float32", op: str = "sum", root: int = 0
) -> _core.Spec:
    """size: bytes of the collective's largest buffer, rounded up to whole elements and blocks."""

    def member(enumeration: Any, name: str, what: str) -> Any:
        if name in enumeration.__members__:
            return enumeration.__members__[name]
        raise unknown(what, enumeration.__members__, name)

    element = member(_core.Dtype, dtype, "--dtype")
    which = member(_core.Collective, collective, "collective")
    kind = KINDS.get(collective)
    unit = element.size * (ranks if kind is not None and kind.many else 1)
    return _core.Spec(
        which,
        element,
        member(_core.ReduceOp, op, "--op"),
        factor=0.5 if op == "premul_sum" else 1,  # the plan is the same for every factor
        root=root,
        count=0 if collective == "barrier" else -(-size // unit),
    )


def render(found: Explanation) -> RenderableType:
    """The page for people."""
    topology = found.topology
    several = len(topology.hosts) > 1
    islands = Tree(
        f"[bold]{topo.count(len(topology), 'rank')}[/], "
        f"{topo.count(len(topology.islands), 'island')}, "
        f"{topo.count(len(topology.hosts), 'host')}"
    )
    topo_page.add_islands(islands, topology)
    topo_page.add_zones(islands, topology)
    chosen = f"[bold]{escape(repr(found.spec)[6:-1])}[/] by [bold green]{found.choice}[/]"
    if found.codec != "none":
        chosen += f", {found.codec} between {'hosts' if several else 'islands'}"
    parts: list[RenderableType] = [
        islands,
        f"\n{chosen}: {escape(found.why)}\n",
        *([f"{_saving(found.codec, found.saving, several)}\n"] if found.saving else []),
        *([f"{escape(_coders(found))}\n"] if found.coders else []),
        *([f"{escape(found.unused)}\n"] if found.unused else []),
        _candidate_table(found),
        _reasons(found),
        "",
    ]
    parts += [_leg_table(rank, found) for rank in found.legs]
    return Group(*parts)


def _saving(codec: str, saving: Saving, several: bool) -> str:
    sizes = [_core.format_bytes(size) for size in (saving.plain_bytes, saving.bytes)]
    taken = "" if codec == saving.codec else "not taken: "
    return (
        f"codec {saving.codec}, {taken}{sizes[0]} -> {sizes[1]} "
        f"{'from the busiest host' if several else 'between islands'}, predicted "
        f"{_time(saving.plain_total)} -> {_time(saving.total)} "
        f"({saving.plain_total / saving.total:.2f}x), error of an element at most: "
        f"{saving.error_bound}"
    )


def _coders(found: Explanation) -> str:
    """Where the elements of each rank are encoded."""

    def some(ranks: list[int]) -> str:
        return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")

    return "\n".join(
        f"{topo.count(len(ranks), 'rank') if found.replayed else 'ranks such as these'} encode "
        f"{where}: {some(ranks)}"
        for where, ranks in found.coders.items()
    )


def _candidate_table(found: Explanation) -> Table:
    staged = any(candidate.staging for candidate in found.candidates)
    timed = ("total", "island", *(("staging",) if staged else ()), "bridge")
    columns = ("algorithm", *timed, "over the bridge")
    table = number_table("Candidates, predicted", columns, ["algorithm"])
    for candidate in found.candidates:
        if candidate.rejected:
            continue
        mark = "[bold green]" if candidate.algorithm == found.choice else ""
        times = (_time(getattr(candidate, column)) for column in timed)
        size = _core.format_bytes(candidate.bridge_bytes)
        table.add_row(f"{mark}{candidate.algorithm}", *times, size)
    return table


def _reasons(found: Explanation) -> Tree:
    """A summary of each candidate, or the reason of its rejection."""
    tree = Tree("Algorithms")
    for candidate in found.candidates:
        rejected = f"rejected: {candidate.rejected}" if candidate.rejected else ""
        tree.add(f"[bold]{candidate.algorithm}[/]: {escape(rejected or candidate.summary)}")
    return tree


def _leg_table(rank: int, found: Explanation) -> Table:
    legs, scratch = found.legs[rank], found.scratch[rank]
    first = "step and its buffers"
    title = f"Plan of rank {rank}, predicted times; scratch: {_core.format_bytes(scratch)}"
    timed = ("start", "end", "busy") if found.replayed else ("busy",)
    table = number_table(title, (first, "bytes", *timed), [first])
    for leg in legs:
        times = (_time(getattr(leg, column)) for column in timed)
        unit = "messages" if leg.peers > 1 else "chunks"
        chunks = f" x {leg.steps} {unit}" if leg.steps > 1 else ""
        step = f"{leg.what}{chunks}\n  [dim]{leg.moves}[/]"
        table.add_row(step, _core.format_bytes(leg.bytes), *times)
    return table


def _time(nanoseconds: int) -> str:
    text: str = _core.format_seconds(nanoseconds * 1e-9)
    return text


def _with_cores(topology: _core.Topology, profile: _core.Profile | None) -> _core.Topology:
    """Gives ranks of a described cluster the processors of the profile's hosts."""
    if profile is None:
        return topology
    cores = {host.name: host.cores for host in profile.hosts}
    infos = topology.ranks
    for info in infos:
        info.cores = cores.get(info.host_name, profile.hosts[0].cores)
    return _core.Topology(infos)


def _chosen_topology(
    file: Path | None,
    islands: str | None,
    bandwidth: str,
    order: str | None,
    timeout: float,
    profile: _core.Profile | None,
) -> _core.Topology | None:
    """The topology to explain; None on ranks of a job that do not print."""
    try:
        if file is not None:
            return _with_cores(topology_of(cluster.load(file)), profile)
        if islands is not None:
            described = islands_of(islands, bandwidth, order or "block")
            return _with_cores(topology_of(described), profile)
    except ClusterError as error:
        raise _core.InvalidArgumentError(str(error)) from error
    if "WORLD_SIZE" in os.environ:
        gathered = topo.gather(os.environ, timeout)
        return None if gathered is None else gathered.topology
    here = _core.probe_rank()
    return _core.Topology([here] * here.cores)


def explain(
    collective: Annotated[str, typer.Argument(help="all_reduce, broadcast, all_gather, ...")],
    bytes: Annotated[str, typer.Option(help="Largest buffer: 4096, 256k, 16M, 1G.")] = "16M",
    dtype: Annotated[str, typer.Option(help="Dtype of the elements.")] = "float32",
    codec: Annotated[
        str | None, typer.Option(help="Of messages between hosts, not HETCOMM_BRIDGE_CODEC.")
    ] = None,
    op: Annotated[str, typer.Option(help="sum, product, average, premul_sum, min ...")] = "sum",
    root: Annotated[int, typer.Option(help="Root rank.")] = 0,
    rank: Annotated[list[int] | None, typer.Option(help="Rank to show; repeatable.")] = None,
    topology: Annotated[Path | None, typer.Option(help="A cluster file, as for emulate.")] = None,
    islands: Annotated[
        str | None, typer.Option(help='Ranks per island, such as "2+2" or "16x8".')
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="Bandwidth of each host, with --islands.")
    ] = "1gbit",
    order: Annotated[
        str | None, typer.Option(help="block, interleaved or random:SEED, with --islands.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Profile of hetcomm tune, instead of HETCOMM_PROFILE.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for other ranks.")] = 60.0,
) -> None:
    """Show the plan of a collective, the reason for its choice, and its predicted time."""
    if topology is not None and islands is not None:
        raise _core.InvalidArgumentError(
            "expected one of --topology and --islands, got both; leave one out"
        )
    if order is not None and islands is None:
        raise _core.InvalidArgumentError("--order needs --islands; a cluster file has its own")
    speeds = _core.Profile.setting() if profile is None else link_profile("--profile", profile)
    chosen = _chosen_topology(topology, islands, bandwidth, order, timeout, speeds)
    if chosen is None:
        return
    shown = rank or [0]
    for each in shown:
        if not 0 <= each < len(chosen):
            raise _core.InvalidArgumentError(f"--rank: expected 0 to {len(chosen) - 1}, got {each}")
    size = _core.parse_bytes(bytes)
    spec = spec_of(collective, size, len(chosen), dtype, op, root)
    if codec is not None:
        spec = spec.with_codec(codec)
    found = explanation(chosen, spec, shown, speeds)
    if json:
        typer.echo(dumps(describe(found), indent=2))
    else:
        Console().print(render(found))
