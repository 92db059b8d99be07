"""One emulated cluster's part of the check, on every rank: times of layers, collectives, steps.

    python -m plan_checks.job SPEC.json RESULT.json

Rank 0 plans with the measured times of the layers, while the others sleep, and hands out the
layouts. Every rank then runs each layout as a trainer does, with layers that sleep.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hetcomm import plan
from hetcomm.plan.layout import Layout
from hetcomm.plan.measure.host_work import host_work
from plan_checks.cases import CLUSTERS, JOBS, Job
from plan_checks.compare import CHOSEN
from plan_checks.layers import Layer, layers

BOUND = timedelta(seconds=120)  # of a wait for rank 0
IN_A_ROW = 4 << 20  # bytes of calls in a row, 2 calls at least
MICRO_BATCHES = (1, 2, 4)


def median_of(count: int, action: Callable[[], Any]) -> float:
    """The median seconds of an action."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def times_of_layers(job: Job, kind: str, repeats: int) -> dict[str, list[list[float]]]:
    """By kind of layer, [micro-batch, forward, backward]. As in training, all ranks do it."""
    found: dict[str, list[list[float]]] = {}
    for name in ("embedding", "block", "head"):
        layer = Layer(job.model, name, job.speed_of(kind))
        for samples in MICRO_BATCHES:
            x = torch.zeros(samples)
            if name != "embedding":
                shape = (samples, job.model.sequence, job.model.hidden)
                x = torch.zeros(shape, requires_grad=True)
            layer(x).backward(gradient=torch.zeros_like(layer(x)))
            forward, backward = [], []
            for _ in range(repeats):
                start = time.perf_counter()
                y = layer(x)
                middle = time.perf_counter()
                y.backward(gradient=torch.zeros_like(y))
                forward.append(middle - start)
                backward.append(time.perf_counter() - middle)
            row = [samples, statistics.median(forward), statistics.median(backward)]
            found.setdefault(name, []).append(row)
    return found


def optimizer_seconds(job: Job, repeats: int) -> float:
    """Seconds of a step for each parameter."""
    weight = torch.nn.Parameter(torch.zeros(job.model.total))
    weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    optimizer.step()
    return median_of(repeats, optimizer.step) / job.model.total


def collective(name: str, size: int, group: Any) -> Callable[[], None]:
    """A call of hetcomm.plan's COLLECTIVES. size: bytes of the larger buffer."""
    ranks = dist.get_world_size(group)
    whole = torch.zeros(size // 4 // ranks * ranks)
    part = torch.zeros(len(whole) // ranks)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
    }
    return calls[name]


def collective_seconds(name: str, size: int, ranks: list[int], repeats: int) -> float:
    """Of a call among calls in a row, as nccl-tests measures: the median, by the slowest rank."""
    group = dist.new_group(ranks) if len(ranks) < dist.get_world_size() else dist.group.WORLD
    count = max(2, IN_A_ROW // size)
    taken = [0.0] * repeats
    if dist.get_rank() in ranks:
        call = collective(name, size, group)
        call()
        for repeat in range(repeats):
            dist.barrier(group)
            start = time.perf_counter()
            for _ in range(count):
                call()
            taken[repeat] = (time.perf_counter() - start) / count
    every = gathered(taken)
    if group is not dist.group.WORLD and dist.get_rank() in ranks:
        dist.destroy_process_group(group)
    return statistics.median(map(max, zip(*every, strict=True)))


def gathered(mine: Any) -> list[Any]:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def repeat_faster(every: list[dict[str, Any]], kind: str, spec: dict[str, Any]) -> None:
    """Measures a choice that is not the fastest layout again, in turns with the faster ones.

    The fastest of several measured layouts owes something to chance. So medians of all turns count.
    """
    chosen = next(each for each in every if each["name"] == CHOSEN)
    limit = chosen["measured"]["seconds"]
    close = [each for each in every if each["measured"]["seconds"] <= limit]
    if len(close) == 1:
        return
    turns = [[each["measured"]["seconds"] for each in close]]
    for _ in range(spec["turns"]):
        turns.append([run_layout(each, kind, spec)["seconds"] for each in close])
    for each, seconds in zip(close, zip(*turns, strict=True), strict=True):
        each["measured"] |= {"seconds": statistics.median(seconds), "turns": seconds}


def run_layout(step: dict[str, Any], kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Trains some steps. Returns the median seconds of a step.

    step: the layout's file, and its job.
    """
    mine = plan.load(step["file"])
    job, warm, steps = JOBS[step["job"]], spec["warm"], spec["steps"]
    layout = mine.layout
    chunks = plan.split(layers(job.model, job.speed_of(kind)), mine)
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=1e-3)
    partition = plan.partition(chunks, optimizer, mine)
    example = torch.zeros(layout.micro_batch)
    schedule = plan.schedule(chunks, mine, _loss, example, partition)
    batch = torch.zeros(layout.batch)
    share = mine.share(batch)
    given = (share,) if mine.is_first else ()
    ends = []
    parts: list[list[float]] = []
    dist.barrier()
    for _ in range(warm + steps + 1):
        losses: list[torch.Tensor] = []
        last = {"target": share, "losses": losses} if mine.is_last else {}
        marks = [time.perf_counter()]
        schedule.step(*given, **last)
        marks.append(time.perf_counter())
        partition.clip_grad_norm_(1.0)
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())
        optimizer.zero_grad()
        ends.append(time.perf_counter())
        parts.append([b - a for a, b in itertools.pairwise(marks)])
    dist.barrier()
    taken = [b - a for a, b in itertools.pairwise(ends)][warm:]
    middle = [statistics.median(each) for each in zip(*parts[warm + 1 :], strict=True)]
    every = gathered((statistics.median(taken), taken, [mine.stage, mine.replica, *middle]))
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
    return {
        "seconds": statistics.median(each[0] for each in every),
        "spread": [min(every[0][1]), max(every[0][1])],
        "parts": [each[2] for each in every],
    }


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).mean()


def main(spec_file: Path, result_file: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("hetcomm", timeout=BOUND)
    spec = json.loads(spec_file.read_text())
    cluster = CLUSTERS[spec["cluster"]]
    rank = dist.get_rank()
    kind = cluster.hosts[cluster.placement[rank]].kind
    dist.barrier()
    measured = {
        name: (times_of_layers(JOBS[name], kind, spec["repeats"]),
               optimizer_seconds(JOBS[name], spec["repeats"]))
        for name in spec["jobs"]
    }  # fmt: skip
    every = gathered((kind, measured, asdict(host_work())))
    store = dist.distributed_c10d._get_default_store()
    folder = result_file.parent
    if rank == 0:
        from plan_checks.planning import planned

        todo = planned(spec, every)
        (folder / "plans.json").write_text(json.dumps(todo))
        store.set("plans", "ready")
    else:
        store.wait(["plans"], BOUND)
    todo = json.loads((folder / "plans.json").read_text())
    dist.barrier()
    for each in todo["collectives"]:
        each["measured"] = collective_seconds(
            each["name"], each["bytes"], each["ranks"], spec["repeats"]
        )
    for number, each in enumerate(todo["steps"]):
        each["file"] = str(folder / f"layout-{number}.json")
        if rank == 0:
            Layout.parse(json.dumps(each["layout"])).save(each["file"])
        dist.barrier()
        each["measured"] = run_layout(each, kind, spec)
        if rank == 0:
            print(each["job"], each["name"], each["predicted"], each["measured"]["seconds"],
                  flush=True)  # fmt: skip
    for job in spec["jobs"]:
        repeat_faster([each for each in todo["steps"] if each["job"] == job], kind, spec)
    if rank == 0:
        result_file.write_text(json.dumps(todo))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
