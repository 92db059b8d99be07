"""What the host of a rank computes beside layers: the schedule's passes, and messages.

Pipelines of empty layers train with few and with many micro-batches. The difference of the
processor's time is that of the passes. A pipeline of several stages adds messages, a short and a
long one. Processor time counts, because other work on the machine changes it least.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from hetcomm.plan.layout import Layout, Replica, Stage
from hetcomm.plan.profile import HostWork
from hetcomm.plan.refuse import refuse
from hetcomm.plan.run.chunks import split
from hetcomm.plan.run.job import Job
from hetcomm.plan.run.partition import partition
from hetcomm.plan.run.schedule import schedule

MORE = 20  # micro-batches of a step than of the one that it is compared with
SHORT, LONG = 64, 64 << 10  # elements of a message
WARM = 2  # steps before the measured ones
BOUND = 120.0  # seconds of host_work_apart()


class _Empty(nn.Module):
    """A layer of one parameter, which hardly computes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def host_work(steps: int = 5) -> HostWork:
    """Of this rank, on the host's memory. A collective of all ranks of the default group.

    steps: of which the fastest counts.
    """
    ranks = dist.get_world_size()
    lone = _processor_seconds(1, ranks, SHORT, steps)
    each = lone / 2  # forward and backward
    if ranks == 1:
        return HostWork(each, 0.0, 0.0)
    stages = 2 if ranks % 2 == 0 else ranks
    stage = dist.get_rank() * stages // ranks
    # Each neighbour gives or gets an activation and a gradient.
    ends = 2 * ((stage > 0) + (stage < stages - 1))
    short, long = (
        max(0.0, _processor_seconds(stages, ranks // stages, size, steps) - lone) / ends
        for size in (SHORT, LONG)
    )
    # The long activations also pass through the empty layers, forward and backward.
    computed = max(0.0, _processor_seconds(1, ranks, LONG, steps) - lone) / ends
    by_byte = max(0.0, long - short - computed) / (4 * (LONG - SHORT))
    return HostWork(each, short, by_byte)


def _processor_seconds(stages: int, replicas: int, elements: int, steps: int) -> float:
    """This process's time of a micro-batch, forward and backward."""
    few, many = (
        _step_seconds(stages, replicas, elements, 2 * stages + more, steps) for more in (0, MORE)
    )
    return max(0.0, many - few) / MORE


def _step_seconds(stages: int, replicas: int, elements: int, count: int, steps: int) -> float:
    """The least of this process's time, of the passes of a step: the least disturbed one."""
    layout = Layout(
        tuple(
            Stage(((s, s + 1),), tuple(Replica((s * replicas + r,)) for r in range(replicas)))
            for s in range(stages)
        ),
        batch=count * replicas,
        micro_batch=1,
        schedule="1f1b",
    )
    job = Job(layout, torch.device("cpu"))
    chunks = split([_Empty() for _ in range(stages)], job)
    parts = partition(chunks, torch.optim.SGD(chunks[0].parameters(), lr=0.0), job)
    passes = schedule(chunks, job, _loss, torch.zeros(1, elements), parts)
    share = torch.zeros(count, elements)
    given = (share,) if job.is_first else ()
    last = {"target": share} if job.is_last else {}
    taken = []
    for _ in range(WARM + steps):
        start = time.process_time()
        passes.step(*given, **last)
        taken.append(time.process_time() - start)
        dist.barrier()
    return min(taken[WARM:])


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).sum()


def host_work_apart() -> HostWork:
    """host_work() of a rank on this host, by two processes that exchange messages over TCP.

    Raises hetcomm.InvalidArgumentError if they fail.
    """
    with tempfile.TemporaryDirectory(prefix="hetcomm-host-work-") as folder:
        command = [sys.executable, "-m", __spec__.name, folder]
        ends = []
        for rank in range(2):
            with open(f"{folder}/{rank}.log", "wb") as log:
                variables = {**os.environ, "HETCOMM_HOST_ID": f"host-work-{rank}"}
                ends.append(
                    subprocess.Popen(
                        [*command, str(rank)], env=variables, stdout=log, stderr=subprocess.STDOUT
                    )
                )
        end = time.monotonic() + BOUND
        try:
            failed = [each.wait(max(0.0, end - time.monotonic())) for each in ends]
        except subprocess.TimeoutExpired:
            failed = [1]
        finally:
            for each in ends:
                each.kill()
                each.wait()
        if any(failed):
            lines = Path(folder, "0.log").read_text(encoding="utf-8").splitlines()
            got = lines[-1] if lines else f"none within {BOUND:g} s"
            refuse("the host's work", "two processes on this host", got, "see the message")
        return HostWork(**json.loads(Path(folder, "0.json").read_text(encoding="utf-8")))


def main(folder: str, rank: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group(
        "hetcomm", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=BOUND)
    )
    found = host_work()
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
