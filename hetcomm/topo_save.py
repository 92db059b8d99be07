"""`hetcomm topo --save`: the cluster file of the real job, for `hetcomm plan` and `emulate`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hetcomm import _core
from hetcomm.emulate import ClusterError
from hetcomm.emulate.cluster import GPU_VENDORS, Cluster, Host, Nic, Zone, format_rate
from hetcomm.emulate.cluster_text import text
from hetcomm.files import writing


def save(topology: _core.Topology, path: Path) -> None:
    """Writes the cluster file of the job. Comments name assumed rates, and NICs apart.

    Raises hetcomm.InvalidArgumentError for a job that no cluster file describes.
    """
    try:
        cluster = cluster_of(topology)
    except ClusterError as error:
        raise _core.InvalidArgumentError(f"--save: {error}") from error
    with writing("--save", path):
        path.write_text("".join(_comments(topology, cluster)) + text(cluster), encoding="utf-8")


def cluster_of(topology: _core.Topology) -> Cluster:
    """The hosts of a job, in the order of their first ranks.

    The NICs of a host are those of all its ranks, by name: NIC i of each host is on network i.
    Raises ClusterError for a host of unlike devices or without NICs.
    """
    names: list[str] = []
    for members in topology.hosts:
        names.append(_name(topology.rank(members[0]).host_name, names))
    hosts = tuple(
        _host(name, [topology.rank(member) for member in members])
        for name, members in zip(names, topology.hosts, strict=True)
    )
    order = tuple(names[topology.host_of(rank)] for rank in range(len(topology)))
    block = tuple(host.name for host in hosts for _ in range(host.ranks))
    levels = topology.zones
    if levels:
        names_of = {host: zone.name for zone in levels[-1] for host in zone.hosts}
        hosts = tuple(replace(host, zone=names_of[index]) for index, host in enumerate(hosts))
    zones = (Zone(zone.name, zone.uplink * 8) for level in levels for zone in level if zone.uplink)
    return Cluster(hosts, "block" if order == block else order, zones=tuple(zones))


def _name(host_name: str, taken: list[str]) -> str:
    """A name that a cluster file permits, and no other host has."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", host_name)[:58].strip("-") or "host"
    lower = [each.lower() for each in taken]
    if name.lower() not in lower:
        return name
    return next(
        each
        for number in range(1, len(taken) + 2)
        if (each := f"{name}-{number}").lower() not in lower
    )


def _host(name: str, ranks: list[_core.RankInfo]) -> Host:
    kinds = {(_vendor(rank), _device(rank)) for rank in ranks}
    if len(kinds) > 1:
        raise ClusterError(
            f"host {name}",
            "devices of one kind on a host",
            ", ".join(sorted(device or vendor for vendor, device in kinds)),
            "give the ranks of each kind a HETCOMM_HOST_ID of their own",
        )
    ((vendor, device),) = kinds
    return Host(
        name=name,
        ranks=len(ranks),
        nics=tuple(_nic(nic) for nic in _nics(ranks)),
        vendor=vendor,
        device=device,
        direct=vendor in GPU_VENDORS and all(rank.direct for rank in ranks),
    )


def kind_of(rank: _core.RankInfo) -> str:
    """The kind of a rank's device, as Host.kind of the file says."""
    return _device(rank) or _vendor(rank)


def _vendor(rank: _core.RankInfo) -> str:
    return rank.vendor if rank.vendor in GPU_VENDORS else rank.island or rank.vendor


def _device(rank: _core.RankInfo) -> str | None:
    """The model of "NVIDIA H200 0000:1b:00.0", which ends with the position of the device."""
    return rank.device.rpartition(" ")[0] or rank.device or None


def _nics(ranks: list[_core.RankInfo]) -> list[_core.Nic]:
    by_name = {nic.name: nic for rank in ranks for nic in rank.nics}
    return [by_name[name] for name in sorted(by_name)]


def _nic(nic: _core.Nic) -> Nic:
    rate = nic.bandwidth * 8
    return Nic(rate, rate, nic.fabric.name, nic.numa)


def _comments(topology: _core.Topology, cluster: Cluster) -> list[str]:
    lines = ["# Written by hetcomm topo --save.\n"]
    for host, members in zip(cluster.hosts, topology.hosts, strict=True):
        for nic in _nics([topology.rank(member) for member in members]):
            if not nic.bandwidth_known:
                rate = format_rate(nic.bandwidth * 8)
                lines.append(
                    f"# {host.name} {nic.name}: {rate} is assumed, no driver reports it.\n"
                )
    for network, address, other in topology.unreachable:
        apart = f"{address} does not reach {other or 'any rank'} over network {network}"
        lines.append(f"# {apart}; the file does not say so.\n")
    return lines
