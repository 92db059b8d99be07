"""Predicted training steps with tensor degrees 1 and 2 beside measured ones, by two ranks.

    .venv/bin/torchrun --standalone --nproc-per-node 2 bench/plan_tensor.py

hetcomm profile's measurements of tensor degrees 1 and 2 predict layouts of one stage: one replica
of two tensor ranks, and two replicas of one. Each layout then trains the same layers, divided by
hetcomm.plan, with a partition and AdamW. Seconds are of the time that passes, because ranks wait
for each other. Other work on the machine changes them, so measure on an idle one.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

from hetcomm import plan
from hetcomm.bench.control import ControlChannel
from hetcomm.explain import islands_of, topology_of
from hetcomm.plan import Layout, Model, PlannedNetwork, Profile, Replica, Stage, predict
from hetcomm.plan.measure.job import measure
from hetcomm.plan.measure.layers import divide, plain
from hetcomm.plan.measure.measurement import Effort
from hetcomm.plan.prediction.runtime import HETCOMM

GPT = Model(blocks=4, hidden=256, heads=8, sequence=128, vocabulary=4096, feed_forward=1024)
SAMPLES, COUNT = 2, 4  # of a micro-batch; micro-batches of a step
LAYOUTS = {"tensor degree 2": (Replica((0, 1)),), "two replicas": (Replica((0,)), Replica((1,)))}


def profile_of(seconds: float) -> Profile:
    control = ControlChannel.of_job(os.environ, 600.0)
    assert control is not None
    effort = Effort((1, 2), seconds, (1, 2))
    found, _ = measure(GPT, effort, control, "cpu", lambda event: None)
    return found


def measured(layout: Layout, steps: int) -> float:
    """The median seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        layout.save(Path(folder, "layout.json"))
        job = plan.load(Path(folder, "layout.json"), "cpu")
    chunks = plan.split(plain(GPT), job, divide)
    optimizer = torch.optim.AdamW([p for chunk in chunks for p in chunk.parameters()])
    partition = plan.partition(chunks, optimizer, job)

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    tokens = torch.randint(GPT.vocabulary, (layout.batch, GPT.sequence))
    schedule = plan.schedule(chunks, job, loss, tokens[:SAMPLES], partition)
    share, found = job.share(tokens), []
    for _ in range(steps + 2):
        dist.barrier()
        start = time.perf_counter()
        schedule.step(share, target=share)
        partition.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(time.perf_counter() - start)
    return statistics.median(found[2:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--steps", type=int, default=15, help="of which the median counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    profile = profile_of(arguments.seconds)
    dist.init_process_group("hetcomm")
    network = PlannedNetwork(topology_of(islands_of("2", "10gbit", "block")))
    for name, replicas in LAYOUTS.items():
        stages = (Stage(((0, GPT.layers),), replicas),)
        layout = Layout(stages, SAMPLES * COUNT * len(replicas), SAMPLES)
        found = predict(GPT, layout, profile, network, ["cpu"] * 2, HETCOMM)
        took = measured(layout, arguments.steps)
        if dist.get_rank() == 0:
            print(
                f"{name}: measured {took:.4f} s, predicted {found.seconds:.4f} s, "
                f"{found.seconds / took - 1:+.1%}; load {os.getloadavg()[0]:.1f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
