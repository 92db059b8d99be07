"""hetcomm's own description of the cluster: topology, and the path of each leg."""

import sys
from pathlib import Path

from hetcomm.demo.launcher import Launcher, RunError
from hetcomm.emulate import Cluster

COMMANDS = (("topo",), ("explain", "all_reduce", "--bytes", "16M"))
TIMEOUT_SECONDS = 60.0


def describe(launcher: Launcher, cluster: Cluster, logs: Path) -> str:
    """Runs `hetcomm topo` and `hetcomm explain` on all ranks; returns rank 0's output."""
    texts = []
    for words in COMMANDS:
        try:
            command = [sys.executable, "-m", "hetcomm", *words]
            launcher.run_ranks(cluster, command, logs, TIMEOUT_SECONDS)
        except RunError as error:
            raise RunError(f"hetcomm {' '.join(words)}: {error}") from error
        texts.append((logs / "rank-0.log").read_text().strip())
    return "\n\n".join(texts)
