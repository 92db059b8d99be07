"""Processes forked from one server for each worker. The server has imported the common modules.

A process that imports torch by itself first computes for more than a second. Python has one such
server for each process, and its first user decides the imports of the server. So all tests take the
server from here. No import of these loads hetcomm's core.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

IMPORTED = [
    "numpy",
    "pytest",
    "hetcomm",
    "torch",
    "torch._dynamo",  # torch.optim imports it at its first step
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.testing",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.optim",  # compiles its optimizers
    "torch.distributed.pipelining",
    "rich.console",
    "rich.progress",
    "typer",
]


def context() -> ForkServerContext:
    """The context that starts processes as children of the server. Leaves out absent modules."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(IMPORTED)
    return forking
