"""A command of hetcomm as a job of two ranks, which are processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

JOB = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


def start(
    command: str, port: str, rank: int, *arguments: str, **settings: str
) -> subprocess.Popen[str]:
    environment = os.environ | JOB | {"MASTER_PORT": port, "RANK": str(rank)} | settings
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hetcomm", command, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
