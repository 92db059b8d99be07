"""examples/recovery/rejoin.py with a death and a late replacement.

rejoining_worker.py PORT WORKERS STEPS KILLED JOINED FOLDER NAME

The worker `victim` kills itself within the backward pass of step KILLED. All workers wait before
step JOINED until the replacement asks for a generation. Each worker writes its losses, steps, and
the size of its group in each step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/recovery"))
import rejoin

BOUND = timedelta(seconds=120)


def main(
    port: int, workers: int, steps: int, killed: int, joined: int, folder: Path, name: str
) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=BOUND)
    batch, loss_of, begun, sizes = rejoin.batch, rejoin.loss_of, [], []

    def watched_batch(step: int) -> torch.Tensor:
        if step == joined:
            store.wait(["3/last/1"], BOUND)  # the replacement asks for generation 3
        begun.append(step)
        sizes.append(dist.get_world_size())
        return batch(step)

    def deadly_loss(
        model: Callable[..., torch.Tensor], inputs: torch.Tensor, size: int
    ) -> torch.Tensor:
        loss = loss_of(model, inputs, size)
        if begun[-1] == killed:
            loss.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
        return loss

    rejoin.batch = watched_batch
    if name == "victim":
        rejoin.loss_of = deadly_loss
    losses = rejoin.train(store, workers, steps)
    report = {"losses": losses, "begun": begun, "sizes": sizes}
    (folder / f"{name}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    port, workers, steps, killed, joined = map(int, sys.argv[1:6])
    main(port, workers, steps, killed, joined, Path(sys.argv[6]), sys.argv[7])
