"""Predicted training steps beside measured ones, of a small GPT in one process on this machine.

    .venv/bin/python bench/plan_profile.py

The measurements of hetcomm profile predict a layout of one stage and one replica. The measured step
is a plain loop over micro-batches, then AdamW, with the same layers. A micro-batch beyond the
largest measured one, and a wider model, show the error of scaling. Seconds are of the processor
time of one thread on both sides, because other work on the machine changes them least.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional

from hetcomm.explain import islands_of, topology_of
from hetcomm.plan import Layout, Model, PlannedNetwork, Profile, Replica, Runtime, Stage, predict
from hetcomm.plan.measure.layers import plain
from hetcomm.plan.measure.measurement import Effort, Measurement

GPT = Model(blocks=6, hidden=256, heads=8, sequence=128, vocabulary=4096, feed_forward=1024)
WIDE = replace(GPT, hidden=384, heads=12, feed_forward=1536)
CASES = ((GPT, 1, 8), (GPT, 2, 4), (GPT, 4, 2), (GPT, 8, 2), (WIDE, 2, 4))
CPU = torch.device("cpu")


def profile_of(model: Model, seconds: float) -> Profile:
    mine = Measurement(model, CPU, Effort((1, 2, 4), seconds))
    for _, action in mine.steps():
        action()
    return mine.profile("cpu")


def predicted(profile: Profile, model: Model, samples: int, count: int) -> tuple[float, float]:
    """Seconds, and the error that the profile states."""
    layout = Layout((Stage(((0, model.layers),), (Replica((0,)),)),), samples * count, samples)
    network = PlannedNetwork(topology_of(islands_of("1", "10gbit", "block")))
    found = predict(model, layout, profile, network, ["cpu"], Runtime())
    return found.seconds, found.error


def measured(model: Model, samples: int, count: int, steps: int) -> float:
    """The median seconds of a step."""
    module = torch.nn.Sequential(*plain(model))
    optimizer = torch.optim.AdamW(module.parameters())
    tokens = torch.randint(model.vocabulary, (count, samples, model.sequence))
    found = []
    for _ in range(steps + 2):
        start = time.thread_time()
        for part in tokens:
            functional.cross_entropy(module(part).flatten(0, 1), part.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        found.append(time.thread_time() - start)
    return statistics.median(found[2:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--steps", type=int, default=15, help="of which the median counts")
    parser.add_argument("--report", type=Path, help="figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    profile = profile_of(GPT, arguments.seconds)
    rows = []
    for model, samples, count in CASES:
        seconds, error = predicted(profile, model, samples, count)
        took = measured(model, samples, count, arguments.steps)
        rows.append(
            {"hidden": model.hidden, "micro_batch": samples, "micro_batches": count,
             "measured": took, "predicted": seconds, "stated_error": error}
        )  # fmt: skip
        print(
            f"hidden {model.hidden}, {count} micro-batches of {samples}: measured {took:.4f} s, "
            f"predicted {seconds:.4f} s, {seconds / took - 1:+.1%}; stated error {error:.1%}"
        )
    if arguments.report:
        arguments.report.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
