"""Runs the demo's trainer as plain processes on the loopback interface."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import Launch
from torch.distributed import TCPStore

from hetcomm.demo import trainer


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Trains a tiny model on `ranks` gloo ranks, each a host of hetcomm's, and returns the lines of
    the metrics file."""
    (tmp_path / "sysfs/class/net").mkdir(parents=True)  # without NICs hetcomm takes the loopback

    def run(ranks: int, layout: str, *extra: str) -> list[dict[str, Any]]:
        metrics = tmp_path / f"{layout}-{ranks}.jsonl"
        # The test holds the store, so that its port is free by construction.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        command = [sys.executable, trainer.__file__, "--backend", "gloo", "--layout", layout]
        command += ["--metrics", str(metrics), "--width", "32", "--heads", "2", "--context", "16"]
        command += ["--steps", "4", *extra]
        processes = []
        for rank in range(ranks):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "HETCOMM_HOST_ID": f"host {rank}",
                "HETCOMM_SYSFS_ROOT": str(tmp_path / "sysfs"),
            }
            processes.append(
                subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            )
        try:
            errors = [process.communicate(timeout=240)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, error in zip(processes, errors, strict=True):
            if process.returncode:
                raise RuntimeError(error)
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    return run
