"""Variables of hetcomm, NCCL and UCX: unknown, unlike across ranks, or in contradiction.

Values leave a rank only for the variables named here and in hetcomm's table of settings. An unknown
variable is reported by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from hashlib import sha256
from hmac import digest
from pathlib import Path
from typing import Any

from hetcomm import _core, _vendors
from hetcomm.doctor.cluster import JobFacts, Member
from hetcomm.doctor.finding import Finding, Severity, group, listed, outsiders
from hetcomm.job_key import FILE, KEY

NAME = "settings"
CHECKED = "HETCOMM_*, NCCL_* and UCX_* variables on all ranks"

_PREFIX = "HETCOMM_"
# What follows in the variables of hetcomm's own commands, build and tests.
_OWN = ("EMULATED_", "BENCH_", "TEST_", "BUILD_")
_FOREIGN = (
    "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_ALGO", "NCCL_PROTO",
    "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "GLOO_SOCKET_IFNAME", "UCX_TLS", "UCX_NET_DEVICES",
)  # fmt: skip
_EQUAL_OF_NCCL = (
    "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
)  # fmt: skip
_VERBS = ("rc", "ud", "dc", "ib")  # beginnings of UCX's names for RDMA transports


def known() -> set[str]:
    """All variables of hetcomm's table, and those that name libraries of vendors."""
    found = {name for row in _core.settings() for name in row[0].split(", ")}
    for row in _vendors.vendors().values():
        found |= {row[part]["variable"] for part in ("runtime", "compiler", "ccl")}
    return found


def equal_everywhere() -> list[str]:
    """The variables that the table wants equal on every rank."""
    rows = (row for row in _core.settings() if "equal on every rank" in row[1])
    return [name for row in rows for name in row[0].split(", ")]


def facts(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    environment = os.environ if environment is None else environment
    names = known()
    own = {name for name in environment if name.startswith(_PREFIX)}
    values = {
        name: environment[name] for name in sorted(names | set(_FOREIGN)) if environment.get(name)
    }
    if key := _fingerprint(values.pop(FILE, ""), values.pop(KEY, "")):
        values[KEY] = key
    found: dict[str, Any] = {
        "values": values,
        "unknown": sorted(
            name for name in own - names if not name.removeprefix(_PREFIX).startswith(_OWN)
        ),
        "interfaces": sorted(os.listdir("/sys/class/net"))
        if Path("/sys/class/net").exists()
        else [],
        "ports": rdma_ports(),
    }
    if "HETCOMM_PROFILE" in values:
        try:
            content = Path(values["HETCOMM_PROFILE"]).read_bytes()
            found["profile"] = sha256(content).hexdigest()[:16]
        except OSError as error:
            found["profile_error"] = error.strerror
    return found


def _fingerprint(path: str, key: str) -> str:
    """Tells job keys apart, since a key never leaves its rank; empty without a job key."""
    try:
        given = Path(path).read_bytes() if path else key.encode()
    except OSError as error:
        return f"no key in {path}: {error.strerror}"
    return f"a key with mark {digest(given.rstrip(), b'doctor', 'sha256').hex()[:6]}" * bool(given)


def rdma_ports() -> list[str]:
    folder = Path("/sys/class/infiniband")
    return sorted(os.listdir(folder)) if folder.exists() else []


def check(cluster: JobFacts) -> list[Finding]:
    return (
        _unknown(cluster)
        + _unlike(cluster)
        + [each for member in cluster.members for each in contradictions(cluster, member)]
    )


def _unknown(cluster: JobFacts) -> list[Finding]:
    ranks: dict[str, list[int]] = {}
    for rank, names in cluster.values(NAME, "unknown"):
        for name in names:
            ranks.setdefault(name, []).append(rank)
    found = []
    for name, of_name in ranks.items():
        near = get_close_matches(name, sorted(known()), 1, 0.8)
        expected = f"{near[0]}, perhaps" if near else "a variable of README's table of settings"
        fix = f"rename {name} to {near[0]}, or unset it" if near else f"unset {name}"
        found.append(
            Finding(
                Severity.warning,
                NAME,
                (),
                tuple(of_name),
                f"{name} is no variable of hetcomm's, and does nothing",
                expected,
                fix,
            )
        )
    return found


def value_of(member: Member, name: str) -> str:
    return str(member.facts.get(NAME, {}).get("values", {}).get(name, ""))


def _unlike(cluster: JobFacts) -> list[Finding]:
    compared = [
        (Severity.error, name, cluster.members)
        for name in equal_everywhere()
        if name != "HETCOMM_PROFILE"
    ]
    for members in cluster.islands:
        if members[0].info is None or members[0].info.vendor not in _vendors.vendors():
            continue
        compared.append((Severity.error, "HETCOMM_CCL", members))
        compared += [(Severity.warning, name, members) for name in _EQUAL_OF_NCCL]
    found = []
    for severity, name, members in compared:
        groups = group((each.rank, value_of(each, name) or "unset") for each in members)
        if len(groups) > 1:
            found.append(_must_be_equal(severity, name, groups))
    return found + _profile(cluster)


def _must_be_equal(severity: Severity, name: str, groups: dict[str, list[int]]) -> Finding:
    best = next(iter(groups))
    fix = f"unset {name} on all ranks" if best == "unset" else f"export {name}='{best}' on all"
    return Finding(
        severity, NAME, (), outsiders(groups), f"{name}: {listed(groups)}", "one value", fix
    )


def _profile(cluster: JobFacts) -> list[Finding]:
    found = [
        Finding(
            Severity.error,
            NAME,
            (),
            (rank,),
            f"HETCOMM_PROFILE names a file that cannot be read: {why}",
            "a file of hetcomm tune on every host",
            "copy the file to this host, or unset HETCOMM_PROFILE on all ranks",
        )
        for rank, why in cluster.values(NAME, "profile_error")
    ]
    broken = {rank for rank, _ in cluster.values(NAME, "profile_error")}
    digests = dict(cluster.values(NAME, "profile"))
    groups = group(
        (each.rank, f"content {digests[each.rank]}" if each.rank in digests else "unset")
        for each in cluster.members
        if each.rank not in broken
    )
    if len(groups) > 1:
        found.append(
            Finding(
                Severity.error,
                NAME,
                (),
                outsiders(groups),
                f"HETCOMM_PROFILE: {listed(groups)}",
                "one file on all ranks",
                "copy the file of rank 0 to all hosts, and set HETCOMM_PROFILE on all ranks",
            )
        )
    return found


def contradictions(cluster: JobFacts, member: Member) -> list[Finding]:
    """Variables of one rank that contradict each other or the machine."""
    facts, found = member.facts.get(NAME, {}), []
    interfaces, ports = facts.get("interfaces", []), facts.get("ports", [])

    def add(severity: Severity, text: str, expected: str, fix: str) -> None:
        found.append(Finding(severity, NAME, (), (member.rank,), text, expected, fix))

    tls = value_of(member, "UCX_TLS")
    if len(cluster.hosts) > 1 and tls and not crosses_hosts(tls, bool(ports)):
        add(
            Severity.error,
            f"UCX_TLS={tls} has no transport between hosts",
            "tcp, or an RDMA transport with an RDMA port",
            "unset UCX_TLS, or add tcp to it",
        )
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        wanted = value_of(member, name)
        if wanted and interfaces and not names_interface(wanted, interfaces):
            native = name.startswith("NCCL") and member.info and member.info.vendor != "cpu"
            add(
                Severity.error if native else Severity.warning,
                f"{name}={wanted} names no interface of this host",
                f"one of {', '.join(interfaces)}",
                f"unset {name}, or correct it",
            )
    devices = [each.partition(":")[0] for each in value_of(member, "UCX_NET_DEVICES").split(",")]
    absent = [each for each in devices if each and each not in (*interfaces, *ports, "all")]
    if absent and interfaces:
        add(
            Severity.error,
            f"UCX_NET_DEVICES names {', '.join(absent)}, which this host lacks",
            f"some of {', '.join([*ports, *interfaces])}",
            "unset UCX_NET_DEVICES, and set HETCOMM_SOCKET_IFNAME to choose NICs",
        )
    if value_of(member, "NCCL_IB_DISABLE") == "1" and ports:
        add(
            Severity.warning,
            f"NCCL_IB_DISABLE=1 on a host with RDMA ports ({', '.join(ports)})",
            "NCCL over RDMA",
            "unset NCCL_IB_DISABLE",
        )
    return found


def crosses_hosts(tls: str, has_rdma: bool) -> bool:
    """Whether UCX_TLS leaves a transport between hosts."""
    names = tls.removeprefix("^").split(",")
    if tls.startswith("^"):
        return "tcp" not in names or (has_rdma and not any(n.startswith(_VERBS) for n in names))
    return any(name in ("all", "tcp") or (has_rdma and name.startswith(_VERBS)) for name in names)


def names_interface(wanted: str, interfaces: list[str]) -> bool:
    """Whether NCCL's or gloo's list chooses an interface: prefixes; with = names, with ^ not."""
    excludes, exact = wanted.startswith("^"), wanted.lstrip("^").startswith("=")
    names = [name.partition(":")[0] for name in wanted.lstrip("^=").split(",") if name]

    def chosen(interface: str) -> bool:
        return any(interface == n if exact else interface.startswith(n) for n in names)

    return any(chosen(interface) != excludes for interface in interfaces)
