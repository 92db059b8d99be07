"""One of two ranks: sums of arrays, messages, and a step of DDP. Prints a line for each."""

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


def messages() -> None:
    """Both ranks send and receive at once, below and above UCX's limit of eager messages."""
    with hetcomm.Communicator.from_env(timeout=SECONDS) as comm:
        for elements in (5, 1 << 20):
            got = np.empty(elements, np.int32)
            send = comm.send(np.full(elements, comm.rank, np.int32), 1 - comm.rank, async_op=True)
            comm.recv(got, 1 - comm.rank)
            send.wait()
            assert (got == 1 - comm.rank).all()


def shared() -> None:
    """Sums of shared allocations, whose memory the other rank maps."""
    with hetcomm.Communicator.from_env(timeout=SECONDS) as comm:
        mine = comm.empty(4 << 20, np.float32)
        mine[:] = comm.rank + 1
        comm.all_reduce(mine, mine)
        assert (mine == 3).all()


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
    attempt("messages", messages)
    attempt("shared", shared)
    attempt("ddp", ddp)
    sys.stdout.flush()
