"""A step of DDP over a link, with about equal times for computing and communicating.

Backward sleeps, so that ranks need no core for backward. Each layer's gradients are communicated
while earlier layers sleep. As a rank of an emulated cluster: overlap.py RESULT BACKEND STEPS.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies.model import Layout, Outcome, Plan, Special, Verdict
from studies.running import on_cluster

LAYERS, LAYER_BYTES = 32, 512 << 10
PARTS = ("compute", "communication", "step")
LINK_BYTES_PER_SECOND = 1e9 / 8
LAYOUTS = (Layout("1+1", ("1gbit",)), Layout("2+2", ("1gbit",)))
MOST = 1.1


def rank_main(result: Path, backend: str, steps: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.save_for_backward(weight)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(pause)
            return gradient, torch.ones_like(ctx.saved_tensors[0])

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = [torch.nn.Parameter(torch.zeros(LAYER_BYTES // 4)) for _ in range(LAYERS)]
            self.layers = torch.nn.ParameterList(layer)

        def forward(self, x: Any) -> Any:
            for weight in self.layers:
                x = Layer.apply(x, weight)
            return x.sum()

    dist.init_process_group(backend)
    model = DistributedDataParallel(
        Model(), bucket_cap_mb=LAYER_BYTES / (1 << 20), gradient_as_bucket_view=True
    )
    x = torch.ones(1, requires_grad=True)
    whole = LAYERS * LAYER_BYTES / LINK_BYTES_PER_SECOND / LAYERS

    def seconds_of(step: Callable[[], None]) -> float:
        """Seconds of the slowest rank."""
        dist.barrier()
        start = time.perf_counter()
        step()
        taken = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        return float(taken)

    def step() -> None:
        model(x).backward()

    def alone() -> None:
        with model.no_sync():
            model(x).backward()

    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for number in range(steps + 2):
        for name, action, each in (
            ("compute", alone, whole), ("communication", step, 0.0), ("step", step, whole)
        ):  # fmt: skip
            pause = each
            taken = seconds_of(action)
            if number >= 2:  # DDP rebuilds its buckets after the first step
                found[name].append(taken)
    if dist.get_rank() == 0:
        result.write_text(json.dumps({k: statistics.median(v) for k, v in found.items()}))
    dist.destroy_process_group()


def study(plan: Plan, outcomes: list[Outcome]) -> Special:
    bars: dict[str, float] = {}
    verdicts: list[Verdict] = []
    steps = 2 if plan.quick else 11
    for layout in LAYOUTS[: 1 if plan.quick else None]:
        for backend in ("hetcomm", "gloo"):
            found = on_cluster(layout, "studies.overlap", backend, str(steps))
            where, what = layout.describe(), f"DDP through {backend}"
            bars |= {f"{where}, {what}: {name}": found[name] for name in PARTS}
            longer = max(found["compute"], found["communication"])
            ratio = found["step"] / longer
            target = f"<= {MOST}" if backend == "hetcomm" else "-"
            met = ratio <= MOST if backend == "hetcomm" else None
            name = "the longer of compute and communication"
            verdicts.append(
                Verdict("longer part", where, what, found["step"], name, longer, ratio, target, met)
            )
    return bars, verdicts


if __name__ == "__main__":
    rank_main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
