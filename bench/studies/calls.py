"""The cost of an empty torch.distributed call, beside one through hetcomm."""

from __future__ import annotations

import statistics
import subprocess
import sys

from hetcomm.timing import seconds_of
from studies.model import Layout, Outcome, Plan, Special, Verdict, median_of
from studies.running import environment

CALLS, TURNS, BOUND = 2000, 15, 120.0
ABOVE = 4e-6  # seconds that hetcomm may add


def empty_call() -> float:
    """Seconds of an all_reduce of 8 bytes through torch's fake backend, without communication."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    tensor = torch.zeros(2)
    seconds = [seconds_of(lambda: dist.all_reduce(tensor), CALLS) / CALLS for _ in range(TURNS)]
    dist.destroy_process_group()
    return statistics.median(seconds)


def study(plan: Plan, outcomes: list[Outcome]) -> Special:
    command = [sys.executable, "-P", "-m", "studies.calls"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=BOUND, check=True
    )
    empty = float(done.stdout)
    ours = median_of(outcomes, Layout("2"), 8, "torch:hetcomm")
    if ours is None:
        return {}, []
    over = ours - empty
    what = "all_reduce 8 B through torch, microseconds above an empty call"
    target = f"<= {ABOVE * 1e6:g}"
    verdict = Verdict(
        "empty call", "2 ranks", what, ours, "empty call", empty, over * 1e6, target, over <= ABOVE
    )
    return {"empty call": empty, "hetcomm through torch, 8 B": ours}, [verdict]


if __name__ == "__main__":
    print(empty_call())
