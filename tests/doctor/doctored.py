"""Clusters made of facts, as `hetcomm doctor` gathers them."""

from __future__ import annotations

from typing import Any

from hetcomm._core import Fabric, Nic, RankInfo
from hetcomm.doctor.cluster import JobFacts, Member
from hetcomm.doctor.finding import Finding

GIGABIT = 125_000_000
MIB = 1 << 20
LIMITS: dict[str, Any] = {
    "shm_size": 1024 * MIB,
    "shm_free": 1024 * MIB,
    "shm_writable": True,
    "memory": 8192 * MIB,
    "descriptors": 65536,
    "locked": -1,
    "may_lock": False,
    "rdma": False,
    "processors": list(range(8)),
    "pid_namespace": "pid:[1]",
    "user": 0,
    "congestion": "cubic",
    "receive": ["6291456"],
    "send": ["4194304"],
}


def nic(number: int = 1, name: str = "eth0", **fields: Any) -> Nic:
    """A NIC of host `number` on the network of its name, with 1 Gbit/s."""
    fields = {"fabric": Fabric.ethernet, "bandwidth": GIGABIT, "bandwidth_known": True} | fields
    subnet = int(name[-1])
    fields = {
        "address": f"198.18.{subnet}.{number}",
        "subnet": f"198.18.{subnet}.0/24",
        "interface": name,
    } | fields
    return Nic(name=name, **fields)


def member(rank: int, host: str = "a", *nics: Nic, vendor: str = "cpu", **facts: Any) -> Member:
    """facts: by check, over those of a healthy rank."""
    info = RankInfo(host=host, host_name=f"node-{host}", vendor=vendor, cores=8, nics=list(nics))
    return Member(
        rank=rank,
        host=host,
        host_name=f"node-{host}",
        info=info,
        error="",
        facts={"limits": LIMITS} | facts,
    )


def cluster(*members: Member, **fields: Any) -> JobFacts:
    return JobFacts(fields.pop("size", len(members)), list(members), **fields)


def texts(findings: list[Finding]) -> list[str]:
    """Each finding in one line."""
    return [
        f"{each.severity.name} {list(each.ranks)} {each.found} | {each.expected} | {each.fix}"
        for each in findings
    ]
