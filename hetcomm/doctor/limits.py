"""Limits of a host: shared memory, locked memory, descriptors, processors, kernel settings."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.doctor.cluster import JobFacts, Member
from hetcomm.doctor.finding import Finding, Severity, group
from hetcomm.doctor.nics import read
from hetcomm.doctor.settings import rdma_ports

NAME = "limits"
CHECKED = "/dev/shm, memory, locked memory, descriptors, processors, ptrace, TCP buffers"

# UCX's shared memory took 8.7 MB of /dev/shm for 2 ranks of a host, and 17.4 MB for 4.
SHM_OF_RANK = 5 << 20
SLOTS = 64 << 20  # bytes of memory for the slots of one island
# Ranks with one group of 4 and 8 ranks on two hosts held up to 35 and 43 descriptors.
DESCRIPTORS, DESCRIPTORS_OF_RANK = 27, 2
SPARE = 2  # times as many, for further groups and for the program
LOCKED = 1 << 30  # bytes that RDMA needs at least: queues, rendezvous buffers, staging
IPC_LOCK = 14  # CAP_IPC_LOCK
ROUND_TRIP = 1e-3  # seconds, for which TCP's buffers must hold the bytes under way
FAST = 1_250_000_000  # bytes per second from which buffers matter


def facts() -> dict[str, Any]:
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    net = Path("/proc/sys/net/ipv4")
    found: dict[str, Any] = {
        "shm_size": shm.f_blocks * shm.f_frsize if shm else 0,
        "shm_free": shm.f_bavail * shm.f_frsize if shm else 0,
        "shm_writable": os.access("/dev/shm", os.W_OK | os.X_OK),
        "memory": _core.available_memory(),
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "locked": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "may_lock": may_lock(read(Path("/proc/self/status"))),
        "rdma": bool(rdma_ports()),
        "processors": sorted(os.sched_getaffinity(0)),
        "quota": quota(Path("/sys/fs/cgroup"), read(Path("/proc/self/cgroup"))),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "user": os.getuid(),
        "congestion": read(net / "tcp_congestion_control"),
        "receive": read(net / "tcp_rmem").split()[-1:],
        "send": read(net / "tcp_wmem").split()[-1:],
    }
    scope = read(Path("/proc/sys/kernel/yama/ptrace_scope"))
    if scope.isdecimal():
        found["ptrace_scope"] = int(scope)
    return {name: value for name, value in found.items() if value is not None}


def may_lock(status: str) -> bool:
    """Whether a process with this /proc/self/status may lock memory beyond its limit."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> IPC_LOCK & 1)
    return False


def _upwards(root: Path, path: str) -> list[Path]:
    """The folder of a control group and the folders above, the last of which is the root."""
    folder = root / path.strip("/")
    return [each for each in (folder, *folder.parents) if each.is_relative_to(root)]


def quota(root: Path, groups: str) -> float | None:
    """Processors that the control groups of this process permit; None without a bound.

    groups: the text of /proc/self/cgroup. Reads cpu.max of version 2, or cpu.cfs_quota_us of
    version 1, in the group and the groups above.
    """
    bounds = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bounds += [read(each / "cpu.max").split() for each in _upwards(root, path)]
        elif "cpu" in controllers.split(","):
            for top in (root / controllers, root / "cpu"):
                for each in _upwards(top, path):
                    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                    bounds.append([read(each / name) for name in names])
    found = [
        int(bound[0]) / int(bound[1])
        for bound in bounds
        if len(bound) == 2 and bound[0].isdecimal() and bound[1].isdecimal() and int(bound[1])
    ]
    return min(found, default=None)


def check(cluster: JobFacts) -> list[Finding]:
    found = []
    for host, members in enumerate(cluster.hosts):
        members = [each for each in members if NAME in each.facts]
        for severity, text, expected, fix in _of_host(cluster, members) if members else []:
            found.append(
                Finding(
                    severity,
                    NAME,
                    (cluster.host_name(host),),
                    cluster.ranks_of(host),
                    text,
                    expected,
                    fix,
                )
            )
    return found + _descriptors(cluster) + _congestion(cluster)


_Row = tuple[Severity, str, str, str]


def _of_host(cluster: JobFacts, members: list[Member]) -> list[_Row]:
    facts = members[0].facts[NAME]
    return [
        *_shared_memory(len(members), facts),
        *_locked(facts),
        *_processors(members),
        *_same_host(members),
        *(_buffers(members[0], facts) if len(cluster.hosts) > 1 else []),
    ]


def megabytes(size: float) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def _shared_memory(ranks: int, facts: dict[str, Any]) -> list[_Row]:
    found = []
    needed = ranks * SHM_OF_RANK
    if not facts["shm_writable"]:
        found.append(
            (
                Severity.warning,
                "/dev/shm " + ("cannot be written" if facts["shm_size"] else "is missing"),
                "a writable /dev/shm for UCX's shared memory",
                "mount -o remount,rw,mode=1777 /dev/shm"
                if facts["shm_size"]
                else "mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
            )
        )
    elif facts["shm_free"] < needed:
        found.append(
            (
                Severity.error if facts["shm_free"] < needed // 2 else Severity.warning,
                f"/dev/shm has {megabytes(facts['shm_free'])} free of "
                f"{megabytes(facts['shm_size'])}",
                f"{megabytes(needed)} free for UCX's shared memory of {ranks} ranks",
                f"docker run --shm-size={max(needed >> 20, 1024)}m, or mount -o remount,size="
                f"{max(needed >> 20, 1024)}m /dev/shm; remove old files there",
            )
        )
    needed = SLOTS + ranks * SHM_OF_RANK
    if facts["memory"] < needed:
        found.append(
            (
                Severity.error,
                f"{megabytes(facts['memory'])} of memory are available",
                f"{megabytes(needed)} for the CPU engine's slots and UCX's shared memory",
                "end other programs, raise the memory limit, or set HETCOMM_SHM_SLOT=8k",
            )
        )
    return found


def _locked(facts: dict[str, Any]) -> list[_Row]:
    bound = facts["locked"]
    if not facts["rdma"] or facts["may_lock"] or bound < 0 or bound >= LOCKED:
        return []
    return [
        (
            Severity.error if bound < SLOTS else Severity.warning,
            f"processes may lock {bound / 1024:,.0f} KiB of memory (ulimit -l), and RDMA locks its "
            "buffers",
            "no limit",
            "ulimit -l unlimited, or memlock unlimited in /etc/security/limits.conf, "
            "LimitMEMLOCK=infinity for slurmd, docker run --ulimit memlock=-1",
        )
    ]


def _processors(members: list[Member]) -> list[_Row]:
    processors = {one for each in members for one in each.facts[NAME]["processors"]}
    ranks, quotas = len(members), [each.facts[NAME].get("quota") for each in members]
    bound = min((each for each in quotas if each is not None), default=None)
    found = []
    if ranks > len(processors):
        found.append(
            (
                Severity.warning,
                f"{ranks} ranks share {len(processors)} processors",
                "a processor for each rank",
                f"start at most {len(processors)} ranks here, or widen their binding "
                "(srun --cpus-per-task, mpiexec --bind-to none)",
            )
        )
    elif bound is not None and bound < ranks:
        found.append(
            (
                Severity.warning,
                f"the control group permits {bound:g} processors for {ranks} ranks",
                "a processor for each rank",
                f"docker run --cpus={ranks}, or a CPU limit of {ranks} for the pod",
            )
        )
    return found


def _same_host(members: list[Member]) -> list[_Row]:
    """What ranks need to reach each other's memory."""
    if len(members) < 2:
        return []
    found = []
    for fact, what, fix in (
        ("pid_namespace", "process namespaces", "start all ranks of the host in one container"),
        ("user", "users", "start all ranks of the host as one user"),
    ):
        values = group((each.rank, each.facts[NAME][fact]) for each in members)
        if len(values) > 1:
            found.append(
                (
                    Severity.warning,
                    f"ranks of one host are in {len(values)} {what}",
                    "one, so that ranks read memory of hetcomm.shared_empty in place",
                    fix,
                )
            )
    scope = members[0].facts[NAME].get("ptrace_scope", 0)
    if scope:
        found.append(
            (
                Severity.note,
                f"kernel.yama.ptrace_scope is {scope}, so processes cannot copy by CMA",
                "hetcomm's links do not use CMA; MPI beside hetcomm is slower",
                "sysctl kernel.yama.ptrace_scope=0",
            )
        )
    return found


def _buffers(member: Member, facts: dict[str, Any]) -> list[_Row]:
    nics = member.info.nics if member.info else []
    rates = [nic.bandwidth for nic in nics if nic.fabric == _core.Fabric.ethernet]
    fastest = max(rates, default=0)
    if fastest < FAST:
        return []
    needed = int(fastest * ROUND_TRIP)
    found = []
    for name, values in (("tcp_rmem", facts["receive"]), ("tcp_wmem", facts["send"])):
        if values and int(values[0]) < needed:
            found.append(
                (
                    Severity.note,
                    f"net.ipv4.{name} ends at {int(values[0]):,} bytes",
                    f"{needed:,} for {fastest * 8e-9:g} Gbit/s and round trips of 1 ms",
                    f'sysctl -w net.ipv4.{name}="4096 131072 {needed}"',
                )
            )
    return found


def descriptors_needed(size: int) -> int:
    """Descriptors of one rank with one group of `size` ranks."""
    return DESCRIPTORS + DESCRIPTORS_OF_RANK * size


def _descriptors(cluster: JobFacts) -> list[Finding]:
    needed = descriptors_needed(cluster.size)
    found = []
    for bound, ranks in group(cluster.values(NAME, "descriptors")).items():
        if 0 <= bound < SPARE * needed:
            found.append(
                Finding(
                    Severity.error if bound < needed else Severity.warning,
                    NAME,
                    (),
                    tuple(ranks),
                    f"a process may have {bound} open descriptors (ulimit -n)",
                    f"{SPARE * needed}: {needed} for a group of {cluster.size} ranks, and as many "
                    "for the program",
                    f"ulimit -n {max(SPARE * needed, 65536)}, or nofile in "
                    "/etc/security/limits.conf",
                )
            )
    return found


def _congestion(cluster: JobFacts) -> list[Finding]:
    values = cluster.per_host(NAME, "congestion")
    groups = group((host, value) for host, value in values if value)
    if len(groups) < 2:
        return []
    text = "; ".join(
        f"{value} on {', '.join(map(cluster.host_name, hosts))}" for value, hosts in groups.items()
    )
    best = next(iter(groups))
    return [
        Finding(
            Severity.note,
            NAME,
            tuple(cluster.host_name(host) for host, value in values if value != best),
            tuple(rank for h, value in values if value != best for rank in cluster.ranks_of(h)),
            f"congestion control of TCP: {text}",
            "one on all hosts; unlike ones share a link unfairly",
            f"sysctl -w net.ipv4.tcp_congestion_control={best}",
        )
    ]
