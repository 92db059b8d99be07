"""Runs a program of programs.py as every rank of a job, without torch's launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ports import free_port

PROGRAMS = Path(__file__).with_name("programs.py")
BOUND = 240.0  # seconds; far above the time of any program


def run(
    folder: Path,
    size: int,
    program: str,
    *arguments: object,
    hosts: str = "",
    environments: Sequence[Mapping[str, str]] = (),
    may_fail: Sequence[int] = (),
) -> list[str]:
    """The output of each rank, after all ranks have ended with 0. `hosts` has a letter for the host
    of each rank, by default one host. `environments` has the variables of each rank beyond this
    process's."""
    port = str(free_port())
    ranks = []
    for rank in range(size):
        settings = {
            "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, "HETCOMM_HOST_ID": hosts[rank] if hosts else "a",
        }  # fmt: skip
        with (folder / f"{rank}.log").open("w") as log:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(PROGRAMS), program, *map(str, arguments)],
                    env=os.environ | settings | dict(environments[rank] if environments else {}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    deadline = time.monotonic() + BOUND
    codes = []
    for process in ranks:
        try:
            codes.append(process.wait(max(deadline - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(process.wait())
    printed = [(folder / f"{rank}.log").read_text() for rank in range(size)]
    assert all(code == 0 or rank in may_fail for rank, code in enumerate(codes)), "\n".join(
        f"--- rank {rank} ended with {code}\n{printed[rank]}" for rank, code in enumerate(codes)
    )
    return printed
