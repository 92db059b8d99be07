"""Runs the demo's trainer as plain processes on the loopback interface."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from launching import Launch
from preloaded import Preloaded
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
        words = ["--backend", "gloo", "--layout", layout, "--metrics", str(metrics)]
        words += ["--width", "32", "--heads", "2", "--context", "16", "--steps", "4", *extra]
        processes, logs = [], [tmp_path / f"{layout}-{rank}.log" for rank in range(ranks)]
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
            with logs[rank].open("w") as log:
                processes.append(Preloaded(trainer.__file__, words, environment, log))
        try:
            codes = [process.wait(240) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for code, process, log in zip(codes, processes, logs, strict=True):
            with process.stdin, process.stdout:
                if code:
                    raise RuntimeError(process.stdout.read() + log.read_text())
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    return run
