"""Choice and plan of one rank in clusters of 8 to 100,000 ranks, which need not exist.

As a program: scale.py CLUSTER RANKS COLLECTIVE BYTES. It prints what `measure` returns, as JSON.
Each case has a process of its own, so nothing is cached.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.explain import spec_of, topology_of
from studies.bound import least_seconds
from studies.model import M, Outcome, Plan, Special, Verdict
from studies.running import BOUND, environment

GBIT, ON_A_HOST = 1_000_000_000, 8  # bits per second; ranks
CASES = (("all_reduce", 64 * M), ("all_reduce", 8), ("broadcast", 64 * M), ("all_to_all", 64 * M))
LONG_MESSAGES = (128, 512)  # ranks with a target for messages of the first case
LEAST_MESSAGE = 128 << 10


def _hosts(count: int, gigabits: int, vendor: str = "cpu", fabric: str = "ethernet") -> list[Host]:
    nic = Nic(gigabits * GBIT, gigabits * GBIT, fabric)
    direct = vendor != "cpu"
    return [
        Host(f"{vendor}{gigabits}-{number}", ON_A_HOST, (nic,), vendor, direct=direct)
        for number in range(count)
    ]


def _cpu(hosts: int) -> list[Host]:
    return _hosts(hosts, 10)


def _three_rates(hosts: int) -> list[Host]:
    return [host for rate in (10, 25, 100) for host in _hosts(hosts // 3, rate)]


def _vendors(amd: int, nvidia: int) -> list[Host]:
    return _hosts(amd, 100, "amd", "roce") + _hosts(nvidia, 100, "nvidia", "roce")


# By name: the hosts of so many hosts, and the numbers of ranks.
CLUSTERS: dict[str, tuple[Callable[[int], list[Host]], tuple[int, ...]]] = {
    "CPU hosts": (_cpu, (8, 64, 128, 512, 1024, 8192, 100_000)),
    "three rates": (_three_rates, (24, 96, 768, 8184)),
    "two vendors": (lambda hosts: _vendors(hosts // 2, hosts // 2), (16, 128, 768, 8192)),
    "HETHUB, 1 to 5": (lambda hosts: _vendors(hosts // 6, hosts - hosts // 6), (768,)),
    "Frontier": (lambda hosts: _hosts(hosts, 100, "amd", "roce"), (384,)),
}


def seconds_permitted(cluster: str, ranks: int) -> float | None:
    """Of choice and plan, on one core."""
    if cluster == "HETHUB, 1 to 5":
        return 0.010
    if cluster == "CPU hosts" and ranks == 64:
        return 0.005
    if cluster == "CPU hosts" and ranks == 1024:
        return 0.020
    return {8184: 0.050, 8192: 0.050, 100_000: 0.100}.get(ranks)


def measure(cluster: str, ranks: int, collective: str, size: int) -> dict[str, Any]:
    """seconds: of the choice and the plan of the middle rank, on one core. memory: bytes that they
    need. steps: of the plan. message: the median bytes of those it sends, 0 without any. total:
    predicted seconds. bound: the least that the wires permit; 0 in one island of one library."""
    hosts = CLUSTERS[cluster][0](ranks // ON_A_HOST)
    topology = topology_of(Cluster(tuple(hosts)))
    spec = spec_of(collective, size, ranks)
    planner, rank = _core.Planner(topology), ranks // 2
    Path("/proc/self/clear_refs").write_text("5")  # the most resident memory is that of now
    before = _most_resident()
    start = time.thread_time()
    plan = planner.plan(spec, rank)
    seconds = time.thread_time() - start
    memory = max(0, _most_resident() - before)
    sent = [step.sources[0].message_bytes for step in plan.steps if step.kind.name == "send"]
    rates = [float(host.nics[0].slower or 0) / 8 for host in hosts]
    several = len(topology.islands) > 1
    return {
        "seconds": seconds,
        "memory": memory,
        "steps": len(plan.steps),
        "message": statistics.median(sent) if sent else 0,
        "total": planner.cost(spec).total * 1e-9,
        "bound": least_seconds(collective, size, [ON_A_HOST] * len(hosts), rates) if several else 0,
        "algorithm": plan.algorithm,
    }


def _most_resident() -> int:
    """Bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def cases(plan: Plan) -> Iterator[tuple[str, int, str, int]]:
    for cluster, (_, sizes) in CLUSTERS.items():
        for ranks in sizes:
            if not plan.quick or ranks < 1000:
                for collective, size in CASES:
                    yield cluster, ranks, collective, size


def study(plan: Plan, outcomes: list[Outcome]) -> Special:
    bars: dict[str, float] = {}
    verdicts: list[Verdict] = []
    for cluster, ranks, collective, size in cases(plan):
        words = (cluster, str(ranks), collective, str(size))
        done = subprocess.run(
            [sys.executable, "-P", "-m", "studies.scale", *words],
            env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=BOUND, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()[-300:]}")
        found = json.loads(done.stdout)
        where, what = f"{cluster}, {ranks} ranks", f"{collective} {_core.format_bytes(size)}"
        algorithm = found.pop("algorithm")
        bars |= {f"{where}, {what}: {fact}": value for fact, value in found.items()}
        permitted = seconds_permitted(cluster, ranks)
        if permitted is not None:
            verdicts.append(_within("plan time", where, what, found["seconds"], permitted))
        if (cluster, collective, size) == ("CPU hosts", *CASES[0]) and ranks in LONG_MESSAGES:
            verdicts.append(
                _within("message", where, what, LEAST_MESSAGE, max(found["message"], 1))
            )
        if found["bound"] and size >= M:  # a short call waits for latencies, not for wires
            ratio = found["total"] / found["bound"]
            verdicts.append(
                Verdict(
                    "predicted", where, what, found["total"], f"wires, {algorithm}",
                    found["bound"], ratio, "-", None,
                )
            )  # fmt: skip
    return bars, verdicts


def _within(kind: str, where: str, what: str, ours: float, permitted: float) -> Verdict:
    """Seconds, but of messages the least permitted bytes divided by the median."""
    ratio, nan = ours / permitted, math.nan
    seconds = (ours, permitted) if kind == "plan time" else (nan, nan)
    return Verdict(
        kind, where, what, seconds[0], "permitted", seconds[1], ratio, "<= 1", ratio <= 1
    )


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
