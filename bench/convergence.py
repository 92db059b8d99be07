"""The loss of the demo's GPT with codecs between hosts, beside the spread of seeds.

    python bench/convergence.py                     # 500 steps, 3 seeds, none, int8 and int4
    python bench/convergence.py --steps 50 --seeds 1 --codecs none,int8

Two emulated hosts of two ranks train with DistributedDataParallel. Each seed has weights and
batches of its own, equal for all codecs. Codecs encode gradients with error feedback. The loss of a
run is the mean of its last 50 steps, which varies less than that of one step. A codec meets the
target if its mean over the seeds lies within the losses of the seeds without a codec.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import mean

from hetcomm.demo.launcher import Launcher
from hetcomm.demo.runs import HERE
from hetcomm.demo.trainer import BATCH
from hetcomm.demo.training import read_training
from hetcomm.emulate import Cluster, Host, Nic, run

CLUSTER = Cluster((Host("north", 2, (Nic(),)), Host("south", 2, (Nic(),))))
LAST = 50  # steps whose mean loss counts
BOUND = 3600.0  # seconds of a training


def final_loss(codec: str, seed: int, steps: int, batch: int) -> float:
    """The loss of a training."""
    with tempfile.TemporaryDirectory(prefix="hetcomm-convergence-") as folder:
        metrics = Path(folder) / "metrics.jsonl"
        options = {
            "--metrics": metrics,
            "--codec": codec,
            "--seed": seed,
            "--steps": steps,
            "--batch": batch,
        }
        words = [str(word) for option in options.items() for word in option]
        command = [sys.executable, str(HERE / "trainer.py"), *words]
        os.environ["OMP_NUM_THREADS"] = "1"  # four ranks share the processors
        Launcher(run).run_ranks(CLUSTER, command, Path(folder) / "logs", BOUND)
        losses = read_training(metrics, "ddp", "hetcomm", steps, codec).losses
    return mean(losses[-LAST:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1 on")
    parser.add_argument("--batch", type=int, default=BATCH, help="sequences of a step")
    parser.add_argument("--codecs", default="none,int8,int4", help="none comes first")
    parser.add_argument("--report", type=Path, help="losses as JSON, by codec")
    arguments = parser.parse_args()
    codecs = arguments.codecs.split(",")
    if codecs[0] != "none":
        parser.error(f"--codecs: expected none first, with which the others compare; got {codecs}")
    losses: dict[str, list[float]] = {codec: [] for codec in codecs}
    for seed in range(1, arguments.seeds + 1):
        for codec in codecs:
            loss = final_loss(codec, seed, arguments.steps, arguments.batch)
            losses[codec].append(loss)
            print(f"seed {seed}, {codec}: {loss:.4f}", flush=True)
    plain = losses["none"]
    print(f"none: {min(plain):.4f} to {max(plain):.4f}, mean {mean(plain):.4f}")
    for codec in codecs[1:]:
        found = mean(losses[codec])
        within = "within" if min(plain) <= found <= max(plain) else "outside"
        print(f"{codec}: mean {found:.4f}, {within} the spread of the seeds")
    if arguments.report:
        arguments.report.write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
