"""Seconds from exec to the end of the first all_reduce, of 2 ranks on one host.

As a rank: startup.py WHAT FOLDER. The rank writes the time of its end, and the seconds of joining
and the first all_reduce after the imports.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import peers

from hetcomm.bench.launch import OF_MPIEXEC
from studies.model import MPIS, Outcome, Plan, Special, Verdict
from studies.running import environment

RANKS, BOUND = 2, 60.0


def rank_main(what: str, folder: Path) -> None:
    rank = os.environ.get("RANK", "")
    if what == "hetcomm":
        import numpy as np

        import hetcomm

        imported = time.monotonic()
        comm = hetcomm.Communicator.from_env()
        comm.all_reduce(np.zeros(2, np.float32))
    elif what in MPIS:
        import mpi4py
        import numpy as np

        mpi4py.rc.initialize = False
        from mpi4py import MPI

        imported = time.monotonic()
        MPI.Init()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, np.zeros(2, np.float32))
        rank = str(MPI.COMM_WORLD.rank)
    else:
        import torch
        import torch.distributed as dist

        imported = time.monotonic()
        dist.init_process_group(what.removeprefix("torch:"))
        dist.all_reduce(torch.zeros(2))
    done = time.monotonic()
    (folder / rank).write_text(json.dumps({"done": done, "joined": done - imported}))
    if what == "hetcomm":
        comm.close()
    elif what in MPIS:
        MPI.Finalize()
    else:
        dist.destroy_process_group()


def measure(what: str) -> tuple[float, float]:
    """Seconds of the slowest rank: from exec to the end, and after the imports."""
    with tempfile.TemporaryDirectory(prefix="hetcomm-study-") as path:
        folder = Path(path)
        program = ["-P", "-m", "studies.startup", what, path]
        if what in MPIS:
            python = peers.python_of(what)
            mpiexec = str(Path(python).parent / "mpiexec")
            commands = [[mpiexec, "-n", str(RANKS), python, *program]]
            more = [{**OF_MPIEXEC, **peers.settings(what, RANKS, 1)}]
        else:
            commands = [[sys.executable, *program]] * RANKS
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            job = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            more = [
                {**job, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
                for rank in range(RANKS)
            ]
        start = time.monotonic()
        started = [
            subprocess.Popen(
                command, env=environment(each), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for command, each in zip(commands, more, strict=True)
        ]  # fmt: skip
        try:
            statuses = [each.wait(BOUND) for each in started]
        finally:
            for each in started:
                each.kill()
                each.wait()
        found = [json.loads(file.read_text()) for file in folder.iterdir()]
        if any(statuses) or len(found) != RANKS:
            raise RuntimeError(f"start-up of {what}: its processes ended with {statuses}")
    return max(each["done"] for each in found) - start, max(each["joined"] for each in found)


def study(plan: Plan, outcomes: list[Outcome]) -> Special:
    """Backends alternate, so all meet the same disturbances. The first turn fills caches."""
    names = ("hetcomm", *plan.peers, "torch:hetcomm", "torch:gloo")
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(2 if plan.quick else 8):
        for name in names:
            found = measure(name)
            if turn:
                taken[name].append(found)
    whole = {name: statistics.median(each[0] for each in taken[name]) for name in names}
    joined = {name: statistics.median(each[1] for each in taken[name]) for name in names}
    bars = {f"{name}: from exec": seconds for name, seconds in whole.items()}
    bars |= {f"{name}: after imports": seconds for name, seconds in joined.items()}
    verdicts = []
    for name in names[1:]:
        ours = "torch:hetcomm" if name == "torch:gloo" else "hetcomm"
        for what, of in (("from exec", whole), ("after imports", joined)):
            case = f"first all_reduce of {ours}, {what}"
            ratio = of[name] / of[ours]
            verdicts.append(
                Verdict(
                    "start-up", f"{RANKS} ranks", case, of[ours], name, of[name], ratio, "-", None
                )
            )
    return bars, verdicts


if __name__ == "__main__":
    rank_main(sys.argv[1], Path(sys.argv[2]))
