"""One of two ranks: small and large sums of arrays, and a step of DDP. Prints a line for each."""

import json
import os
import sys
from collections.abc import Callable

import numpy as np

import hetcomm

SECONDS = 90.0


def arrays(elements: int) -> None:
    with hetcomm.Communicator.from_env(timeout=SECONDS) as comm:
        mine = np.arange(elements, dtype=np.float32) % 1024 + comm.rank
        total = comm.all_reduce(mine)
        assert np.array_equal(total, 2 * (np.arange(elements, dtype=np.float32) % 1024) + 1)


def ddp() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['TORCH_PORT']}"
    dist.init_process_group("hetcomm", init_method=address, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    inputs = torch.arange(32.0).reshape(2, 2, 8) / 32
    model(inputs[rank]).square().mean().backward()
    alone = torch.nn.Linear(8, 8)
    alone.load_state_dict(model.module.state_dict())
    alone(inputs.flatten(0, 1)).square().mean().backward()
    torch.testing.assert_close(model.module.weight.grad, alone.weight.grad)
    with torch.no_grad():  # torch.optim would import half of torch first
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    dist.destroy_process_group()


def attempt(check: str, action: Callable[[], None]) -> None:
    error = None
    try:
        action()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    print(json.dumps({"check": check, "error": error}), flush=True)


if __name__ == "__main__":
    attempt("small", lambda: arrays(1024 // 4))
    attempt("large", lambda: arrays((64 << 20) // 4))
    attempt("ddp", ddp)
    sys.stdout.flush()
