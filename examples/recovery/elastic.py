"""DDP with a checkpoint after every step, for torchrun. A restarted job loads the checkpoint.

    torchrun --nproc-per-node 4 --max-restarts 3 elastic.py FOLDER

A dead rank ends the attempt: hetcomm names the rank in the error of all others, and torchrun starts
all ranks again. The folder is one that all hosts share.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 6, 8


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: Callable[..., torch.Tensor], step: int, rank: int, size: int) -> torch.Tensor:
    """The loss of a rank's share of the batch of a step."""
    inputs = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step))
    share = inputs[rank * BATCH // size : (rank + 1) * BATCH // size]
    return ((model(share) - share.sum(1, keepdim=True)) ** 2).mean()


def train(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("hetcomm")
    rank, size = dist.get_rank(), dist.get_world_size()
    model, optimizer = model_and_optimizer()
    saved, begin, losses = folder / "saved.pt", 0, []
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin, losses = state["step"], state["losses"]
    network = DistributedDataParallel(model)
    for step in range(begin, STEPS):
        loss = loss_of(network, step, rank, size)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        losses.append(mean.item())
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step + 1, "losses": losses}, folder / "unfinished.pt")
            os.replace(folder / "unfinished.pt", saved)  # a checkpoint is whole or not there
        dist.barrier()  # no rank is a step ahead of the checkpoint
    report = {"losses": losses, "began": begin, "backend": dist.get_backend()}
    (folder / f"rank{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
