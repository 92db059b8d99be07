"""Whether every pair of hosts connects, over which NICs, and how fast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.doctor.cluster import JobFacts, Link, Member
from hetcomm.doctor.finding import Finding, Severity
from hetcomm.doctor.nics import read
from hetcomm.topo_page import format_bandwidth

NAME = "reach"
CHECKED = "connections between all pairs of hosts, both ways, and their rates"
ENOUGH = 0.5  # of the nominal rate
SHOWN = 8  # findings of one severity, since a job has many pairs of hosts


def facts() -> dict[str, Any]:
    return {"ports": read(Path("/proc/sys/net/ipv4/ip_local_port_range")).split()}


def links_of(hosts: list[list[Member]], ports: list[int]) -> list[Link]:
    """The links to try: NICs on one network with each other, and the addresses of set-up.

    hosts: their members. ports: by host, where its first member listens.
    """
    infos = [next((each.info for each in members if each.info), None) for members in hosts]
    found = []
    for source, own in enumerate(infos):
        for target, other in enumerate(infos):
            if source != target and own is not None and other is not None:
                port = ports[target]
                found += [
                    Link(source, target, a, b, x, y, port) for (a, x), (b, y) in _pairs(own, other)
                ]
    return found


def planned(links: list[Link], rounds: list[list[tuple[int, int]]]) -> list[Link]:
    """The links, each with whether one of the rounds of pairs measures its rate."""
    measured = {frozenset(pair) for pairs in rounds for pair in pairs}
    return [
        replace(link, planned=frozenset((link.source, link.target)) in measured) for link in links
    ]


End = tuple[str, str]  # the name and the address of a NIC


def _pairs(own: _core.RankInfo, other: _core.RankInfo) -> list[tuple[End, End]]:
    by_network: list[dict[str, list[End]]] = []
    for info in (own, other):
        found: dict[str, list[End]] = {}
        for nic in info.nics:
            if nic.address and nic.subnet:
                network = nic.subnet if nic.fabric != _core.Fabric.infiniband else "infiniband"
                found.setdefault(network, []).append((nic.name, nic.address))
        by_network.append(found)
    pairs = [
        pair
        for network, ends in by_network[0].items()
        for pair in zip(ends, by_network[1].get(network, []), strict=False)
    ]
    used = _used(own, other)
    if (used[0][1], used[1][1]) not in [(a[1], b[1]) for a, b in pairs]:
        pairs.append(used)
    return pairs


def _used(own: _core.RankInfo, other: _core.RankInfo) -> tuple[End, End]:
    """The pair that control connections would use."""
    hosts = [_core.RankInfo(host=str(i), nics=each.nics) for i, each in enumerate((own, other))]
    path = _core.Topology(hosts).ip_path(0, 1)

    def end(info: _core.RankInfo, index: int) -> End:
        nic = info.nics[index] if index >= 0 else _core.Nic(name="lo", address="127.0.0.1")
        return nic.name, nic.address

    return end(own, path.own), end(other, path.peer)


def check(cluster: JobFacts) -> list[Finding]:
    if cluster.alone:
        text = "connections between hosts were not tried: this process is alone"
        fix = "srun hetcomm doctor, or torchrun --no-python ... hetcomm doctor"
        return [Finding(Severity.note, NAME, (), (), text, "the command of a job", fix)]
    found = []
    if cluster.unmeasured:
        found.append(Finding(Severity.note, NAME, (), (), cluster.unmeasured))
    found += _unconnected(cluster) + _without_nominal_rate(cluster)
    found += [each for link in cluster.links for each in _slow(cluster, link)]
    return condensed(found)


def condensed(findings: list[Finding]) -> list[Finding]:
    """The first SHOWN findings of each severity, and one for all others of that severity."""
    found = []
    for severity in Severity:
        own = [each for each in findings if each.severity == severity]
        found += own[:SHOWN]
        if more := own[SHOWN:]:
            found.append(
                Finding(
                    severity,
                    NAME,
                    tuple(dict.fromkeys(host for each in more for host in each.hosts)),
                    tuple(sorted({rank for each in more for rank in each.ranks})),
                    f"{len(more)} more findings like these between hosts",
                    "",
                    "hetcomm doctor --json lists all links",
                )
            )
    return found


def _unconnected(cluster: JobFacts) -> list[Finding]:
    """A pair of hosts without any link is an error, a failed NIC beside others a warning."""
    found = []
    pairs: dict[tuple[int, int], list[Link]] = {}
    for link in cluster.links:
        a, b = sorted((link.source, link.target))
        pairs.setdefault((a, b), []).append(link)
    for (a, b), links in sorted(pairs.items(), key=lambda pair: pair[0]):
        broken = [each for each in links if each.why]
        if not broken:
            continue
        names = tuple(cluster.host_name(host) for host in (a, b))
        ranks = tuple(sorted(cluster.ranks_of(a) + cluster.ranks_of(b)))
        if len(broken) == len(links):
            severity, expected = Severity.error, "a TCP connection in one direction at least"
        else:
            severity = Severity.warning
            expected = "a connection over each NIC, in both directions"
        text = "; ".join(_failed(cluster, each) for each in broken)
        fix = _remedy(cluster, broken)
        found.append(Finding(severity, NAME, names, ranks, text, expected, fix))
    return found


def _failed(cluster: JobFacts, link: Link) -> str:
    return (
        f"{cluster.host_name(link.source)} {link.own} {link.from_address} does not reach "
        f"{cluster.host_name(link.target)} {link.other} {link.to_address} port {link.port}: "
        f"{link.why}"
    )


def _remedy(cluster: JobFacts, broken: list[Link]) -> str:
    link = broken[0]
    why = {each.why for each in broken}
    if any("unreachable" in each or "no route" in each for each in why):
        return (
            f"on {cluster.host_name(link.source)}: ip route get {link.to_address}; add the route, "
            f"or leave {link.own} out by HETCOMM_SOCKET_IFNAME"
        )
    ports = dict(cluster.per_host(NAME, "ports")).get(link.target) or ["1024", "65535"]
    return (
        f"permit TCP ports {ports[0]}-{ports[1]} (net.ipv4.ip_local_port_range) from "
        f"{link.from_address}: iptables -I INPUT -p tcp -s {link.from_address} --dport "
        f"{ports[0]}:{ports[1]} -j ACCEPT on {cluster.host_name(link.target)}; or leave "
        f"{link.other} out by HETCOMM_SOCKET_IFNAME"
    )


def _slow(cluster: JobFacts, link: Link) -> list[Finding]:
    """Below half of the nominal rate, unless the processors themselves carry no more."""
    if link.why or (link.rate is None and not link.planned):
        return []
    names = (cluster.host_name(link.source), cluster.host_name(link.target))
    ranks = tuple(sorted(cluster.ranks_of(link.source) + cluster.ranks_of(link.target)))
    path = f"from {names[0]} {link.own} to {names[1]} {link.other}"
    if link.rate is None:
        text = f"the rate {path} was not measured: no data came in time"
        return [Finding(Severity.note, NAME, names, ranks, text)]
    if link.rate == 0:
        text = f"{path}: the connection forms, but no large packets arrive"
        fix = (
            "give NICs, switches and tunnels on the way one MTU; ping -M do -s SIZE "
            f"{link.to_address} finds the largest SIZE that passes"
        )
        return [Finding(Severity.error, NAME, names, ranks, text, "data within 0.5 s", fix)]
    nominal = nominal_rate(cluster, link)
    if nominal is None:
        return []
    if link.rate >= ENOUGH * nominal:
        return []
    carried = link.rate
    if link.reference is not None and carried >= ENOUGH * link.reference:
        text = (
            f"{path}: {_bits(carried)} measured; one connection over the loopback carries "
            f"{_bits(link.reference)}, so the processors bound the measurement"
        )
        fix = "measure without other load, with iperf3 -P 8, or ib_write_bw for RDMA"
        return [Finding(Severity.note, NAME, names, ranks, text, format_bandwidth(nominal), fix)]
    text = f"{path}: {_bits(carried)} measured"
    expected = f"{format_bandwidth(nominal)}, the nominal rate of the slower NIC"
    fix = (
        f"ethtool {link.own} and ethtool -S {link.own} at both ends: speed, duplex, errors; then "
        "the switch port, other traffic, and tc qdisc show"
    )
    return [Finding(Severity.warning, NAME, names, ranks, text, expected, fix)]


def _without_nominal_rate(cluster: JobFacts) -> list[Finding]:
    """One note for each name of NICs whose measured rates nothing can be compared with."""
    rates: dict[str, list[float]] = {}
    for link in cluster.links:
        if link.rate and nominal_rate(cluster, link) is None:
            rates.setdefault(link.own, []).append(link.rate)
    return [
        Finding(
            Severity.note,
            NAME,
            (),
            (),
            f"rates of {name} were not judged: no driver reports one for TCP there; measured "
            f"{_bits(min(measured))} to {_bits(max(measured))}",
            "",
            "compare with the NIC's data sheet; ib_write_bw measures RDMA",
        )
        for name, measured in rates.items()
    ]


def _bits(rate: float) -> str:
    return f"{rate * 8e-9:.3g} Gbit/s"


def nominal_rate(cluster: JobFacts, link: Link) -> int | None:
    """Of the slower NIC, None if a driver reports none, or for InfiniBand, whose verbs are not
    measured."""
    rates = []
    for host, name in ((link.source, link.own), (link.target, link.other)):
        infos = [each.info for each in cluster.hosts[host] if each.info]
        nic = next((nic for info in infos for nic in info.nics if nic.name == name), None)
        if nic is None or not nic.bandwidth_known or nic.fabric == _core.Fabric.infiniband:
            return None
        rates.append(int(nic.bandwidth))
    return min(rates)
