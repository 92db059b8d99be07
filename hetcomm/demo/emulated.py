"""Runs a program on every rank of an emulated cluster and says what went wrong where it fails."""

from collections.abc import Sequence
from pathlib import Path

from hetcomm.emulate import Cluster, run
from hetcomm.emulate.cluster import format_rate

LAST_LINES = 20


class RunError(Exception):
    """A run that failed: how it ended, and the last lines of the rank that ended it."""


def run_ranks(cluster: Cluster, command: Sequence[str], logs: Path, timeout: float) -> None:
    """Writes the ranks' output to rank-N.log in `logs`. Raises RunError, or ClusterError."""
    result = run(cluster, command, timeout=timeout, stdout=logs)
    if result.ok:
        return
    rank = result.failed_rank
    if rank is None:
        rank = next(rank for rank, code in enumerate(result.exit_codes) if code != 0)
    lines = (logs / f"rank-{rank}.log").read_text(errors="replace").splitlines()
    said = "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (nothing)"
    raise RunError(f"{result.verdict()}\nThe last lines of rank {rank}:\n{said}")


def describe_cluster(cluster: Cluster) -> str:
    """`north: 2 ranks, 1gbit; south: 2 ranks, 1gbit`, with the order unless it is the usual one."""
    hosts = []
    for host in cluster.hosts:
        rates = " + ".join(format_rate(nic.slower) for nic in host.nics)
        hosts.append(f"{host.name}: {host.ranks} ranks, {rates}")
    if cluster.order != "block":
        ranks = " ".join(cluster.hosts[place].name for place in cluster.placement)
        hosts.append(f"rank order: {ranks}")
    return "; ".join(hosts)
