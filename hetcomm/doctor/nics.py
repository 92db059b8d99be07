"""NICs across hosts: kinds, rates, MTU, links, RoCE GIDs, and hetcomm's own choice."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.doctor.cluster import JobFacts, Member
from hetcomm.doctor.finding import Finding, Severity, group
from hetcomm.topo_page import format_bandwidth

NAME = "nics"
CHECKED = "kinds, rates, MTU, links and GIDs of NICs, and the NICs that hetcomm chose"


def facts() -> dict[str, Any]:
    machine = _core.Machine.current()
    # As if nothing were requested, because requested NICs come without a reason.
    free = _core.Machine(
        machine.sysfs, machine.addresses, machine.default_routes, [], machine.verbs
    )
    return {
        "interfaces": interfaces(Path(machine.sysfs) / "class/net"),
        "unasked": _core.explain_nics(free),
        "warnings": _core.nic_warnings(free),
    }


def interfaces(folder: Path) -> dict[str, dict[str, Any]]:
    """[name] -> mtu, state, and whether it is a device rather than made by software."""
    found = {}
    for name in sorted(os.listdir(folder)) if folder.is_dir() else []:
        if (folder / name).is_dir():
            mtu = read(folder / name / "mtu")
            found[name] = {
                "mtu": int(mtu) if mtu.isdecimal() else None,
                "state": read(folder / name / "operstate"),
                "device": (folder / name / "device").exists(),
            }
    return found


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def check(cluster: JobFacts) -> list[Finding]:
    return (
        _unprobed(cluster)
        + _poor_choices(cluster)
        + _down(cluster)
        + _settings_of_roce(cluster)
        + _unlike_on_networks(cluster)
        + _unlike_fabrics(cluster)
    )


def _unprobed(cluster: JobFacts) -> list[Finding]:
    return [
        Finding(
            Severity.error,
            NAME,
            (),
            (each.rank,),
            each.error,
            "facts of this rank",
            "correct what the message names",
        )
        for each in cluster.members
        if each.error
    ]


def _poor_choices(cluster: JobFacts) -> list[Finding]:
    """NICs taken although they do not lead to other hosts."""
    if len(cluster.hosts) < 2:
        return []
    found = []
    for index, members in enumerate(cluster.hosts):
        first = next((each for each in members if each.info), None)
        if first is None or first.info is None:
            continue
        for nic in first.info.nics:
            if why := poor(nic.name, first.facts.get(NAME, {}).get("unasked", [])):
                found.append(
                    Finding(
                        Severity.error,
                        NAME,
                        (cluster.host_name(index),),
                        cluster.ranks_of(index),
                        f"hetcomm uses {nic.name}: {why}",
                        "an interface of a network between hosts",
                        "set HETCOMM_SOCKET_IFNAME to an interface that reaches the other hosts, "
                        "or bring one up with an IP address",
                    )
                )
    return found


def poor(name: str, unasked: list[str]) -> str:
    """Why this NIC should not carry messages between hosts, "" if it may. unasked: reasons of the
    choice without a request."""
    line = next((line for line in unasked if line.startswith(f"{name}: ")), "")
    text = line.removeprefix(f"{name}: ")
    if text.startswith("taken, ") and text.endswith(", but nothing better can be used"):
        return text.split("; ")[-1].removesuffix(", but nothing better can be used")
    if text.startswith("left out, "):
        return text.removeprefix("left out, ").removesuffix(", and there is a better one")
    return ""


def _down(cluster: JobFacts) -> list[Finding]:
    """Devices without a link, a warning where the same device of another host has one."""
    up = {
        name
        for _, interfaces in cluster.per_host(NAME, "interfaces")
        for name, each in interfaces.items()
        if each["state"] == "up"
    }
    return [
        Finding(
            Severity.warning if name in up else Severity.note,
            NAME,
            (cluster.host_name(host),),
            cluster.ranks_of(host),
            f"the link of {name} is down",
            "up, as on other hosts" if name in up else "up, if it has a cable",
            f"check the cable and the switch; ip link set {name} up",
        )
        for host, interfaces in cluster.per_host(NAME, "interfaces")
        for name, each in interfaces.items()
        if each["device"] and each["state"] in ("down", "lowerlayerdown")
    ]


def _settings_of_roce(cluster: JobFacts) -> list[Finding]:
    found = []
    for host, warnings in cluster.per_host(NAME, "warnings"):
        for warning in warnings:
            what, _, remedy = warning.partition("; ")
            found.append(
                Finding(
                    Severity.warning,
                    NAME,
                    (cluster.host_name(host),),
                    cluster.ranks_of(host),
                    what,
                    "a RoCE v2 GID with the address of the port",
                    remedy,
                )
            )
    return found


def _unlike_on_networks(cluster: JobFacts) -> list[Finding]:
    """Facts of the NICs on one network that differ between its hosts."""
    networks: dict[str, list[tuple[int, _core.Nic, int | None]]] = {}
    for host, members in enumerate(cluster.hosts):
        seen = set()
        for member, nic in chain.from_iterable(
            ((each, nic) for nic in each.info.nics) for each in members if each.info
        ):
            if nic.subnet and nic.name not in seen:
                seen.add(nic.name)
                networks.setdefault(nic.subnet, []).append((host, nic, _mtu(member, nic)))
    found = []
    for subnet, ends in sorted(networks.items()):
        compared: tuple[tuple[Severity, str, Callable[[Any], str | None], str], ...] = (
            (Severity.warning, "kind", lambda end: end[1].fabric.name, _FIX_KIND),
            (Severity.warning, "rate", _rate, _FIX_RATE),
            (Severity.error, "MTU", lambda end: end[2] and str(end[2]), _FIX_MTU),
            (Severity.note, "GID index", _gid, _FIX_GID),
        )
        for severity, what, value_of, fix in compared:
            values = [(index, value_of(end)) for index, end in enumerate(ends)]
            groups = group((index, value) for index, value in values if value)
            if len(groups) > 1:
                found.append(_unlike(cluster, severity, subnet, what, ends, groups, fix))
    return found


_FIX_KIND = "give all hosts of the network NICs of one kind, or name like ones: {variable}"
_FIX_RATE = "ethtool {nic}; then check cable, switch port and ethtool -s {nic} autoneg on"
_FIX_MTU = "ip link set {nic} mtu {value}, and the same MTU at the switch"
_FIX_GID = "nothing: hetcomm tells NCCL each rank's index; do not set NCCL_IB_GID_INDEX"


def _mtu(member: Member, nic: _core.Nic) -> int | None:
    interfaces = member.facts.get(NAME, {}).get("interfaces", {})
    mtu: int | None = interfaces.get(nic.interface or nic.name, {}).get("mtu")
    return mtu


def _rate(end: tuple[int, _core.Nic, int | None]) -> str | None:
    return format_bandwidth(end[1].bandwidth) if end[1].bandwidth_known else None


def _gid(end: tuple[int, _core.Nic, int | None]) -> str | None:
    return str(end[1].gid) if end[1].gid >= 0 else None


def _unlike(
    cluster: JobFacts,
    severity: Severity,
    subnet: str,
    what: str,
    ends: list[tuple[int, _core.Nic, int | None]],
    groups: dict[str, list[int]],
    fix: str,
) -> Finding:
    """groups: [value] -> indices into `ends`."""

    def places(indices: list[int]) -> str:
        return ", ".join(f"{cluster.host_name(ends[i][0])} {ends[i][1].name}" for i in indices)

    best, *others = groups
    if len(groups[best]) == len(groups[others[0]]) and what in ("MTU", "rate"):
        best, *others = sorted(groups, key=lambda value: float(value.split()[0]), reverse=True)
    strange = [i for value in others for i in groups[value]]
    hosts = sorted({ends[i][0] for i in strange})
    return Finding(
        severity,
        NAME,
        tuple(cluster.host_name(host) for host in hosts),
        tuple(rank for host in hosts for rank in cluster.ranks_of(host)),
        f"{what} on network {subnet}: "
        + "; ".join(f"{value} ({places(groups[value])})" for value in others),
        f"{best}, as on {places(groups[best])}",
        fix.format(
            nic=ends[strange[0]][1].interface or ends[strange[0]][1].name,
            value=best,
            variable="HETCOMM_SOCKET_IFNAME",
        ),
    )


def _unlike_fabrics(cluster: JobFacts) -> list[Finding]:
    """Hosts without a fast fabric that other hosts have."""
    fabrics = {
        host: {nic.fabric.name for each in members if each.info for nic in each.info.nics}
        for host, members in enumerate(cluster.hosts)
        if any(each.info for each in members)
    }
    found = []
    for fabric in ("infiniband", "roce"):
        having = [host for host, names in fabrics.items() if fabric in names]
        lacking = [host for host, names in fabrics.items() if fabric not in names]
        if having and lacking:
            found.append(
                Finding(
                    Severity.warning,
                    NAME,
                    tuple(cluster.host_name(host) for host in lacking),
                    tuple(rank for host in lacking for rank in cluster.ranks_of(host)),
                    f"no usable {fabric}",
                    f"{fabric}, as on {', '.join(cluster.host_name(host) for host in having)}",
                    "hetcomm topo says why each port was left out; load its driver, or use "
                    "these hosts over Ethernet",
                )
            )
    return found
