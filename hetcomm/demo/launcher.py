"""Runs the demo's programs on every rank, and explains failures."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetcomm.demo import loopback
from hetcomm.emulate import Cluster, ClusterError, RefusedError, Result, run
from hetcomm.emulate.cluster import format_rate

LAST_LINES = 20
PROBE_SECONDS = 60.0


class RunError(Exception):
    """A failed run: its end, and the last lines of the failed rank."""


@dataclass(frozen=True)
class Launcher:
    """An emulated cluster, or plain processes if this machine refuses to emulate clusters.

    run: like `hetcomm.emulate.run`. missing: the machine's refusal, and the remedy. congestion: the
    congestion control of TCP; None: the machine's own.
    """

    run: Callable[..., Result]
    congestion: str | None = None
    missing: RefusedError | None = None

    @property
    def is_shaped(self) -> bool:
        """Whether links have the cluster's rates, and the bytes on each link are counted."""
        return self.missing is None

    def run_ranks(
        self,
        cluster: Cluster,
        command: Sequence[str],
        logs: Path,
        timeout: float,
        preload: Sequence[str] = (),
    ) -> None:
        """Writes the ranks' output to rank-N.log in `logs`. Ranks of an emulated cluster share one
        import of the modules `preload`. Raises RunError, or ClusterError."""
        result = self._run(cluster, command, logs, timeout, preload if self.is_shaped else ())
        if result.ok:
            return
        rank = result.failed_rank
        if rank is None:
            rank = next((rank for rank, code in enumerate(result.exit_codes) if code != 0), 0)
        lines = (logs / f"rank-{rank}.log").read_text(errors="replace").splitlines()
        said = "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (nothing)"
        raise RunError(f"{result.verdict()}\nThe last lines of rank {rank}:\n{said}")

    def _run(
        self,
        cluster: Cluster,
        command: Sequence[str],
        logs: Path,
        timeout: float,
        preload: Sequence[str],
    ) -> Result:
        if preload:
            try:
                return self.run(cluster, command, timeout=timeout, stdout=logs, preload=preload)
            except ClusterError as error:
                if error.key != "preload":
                    raise
                logging.getLogger(__package__).warning("%s: each rank imports its modules", error)
        return self.run(cluster, command, timeout=timeout, stdout=logs)

    def describe(self, cluster: Cluster) -> str:
        """`north: 2 ranks, 1gbit; south: 2 ranks, 1gbit`, then an unusual order or network."""
        parts = []
        for host in cluster.hosts:
            rates = " + ".join(format_rate(nic.slower) for nic in host.nics)
            parts.append(f"{host.name}: {host.ranks} ranks" + (f", {rates}" * self.is_shaped))
        if cluster.order != "block":
            ranks = " ".join(cluster.hosts[place].name for place in cluster.placement)
            parts.append(f"rank order: {ranks}")
        if not self.is_shaped:
            parts.append("plain processes on one machine's loopback, no link shaped")
        return "; ".join(parts)


def choose(cluster: Cluster, logs: Path) -> Launcher:
    """Tries to emulate the cluster. Raises ClusterError for a wrong cluster."""
    try:
        result = run(cluster, ["true"], timeout=PROBE_SECONDS, stdout=logs)
    except RefusedError as missing:
        return Launcher(loopback.run, missing=missing)
    return Launcher(run, congestion=result.congestion)
