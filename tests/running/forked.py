"""Processes forked from one server per worker, which has imported what most of them need.

A process that imports torch by itself computes for more than a second first. Python has one such
server per process, and its first user decides what the server imports: all tests take the server
from here. No import of these loads hetcomm's core.
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
]


def context() -> ForkServerContext:
    """What starts processes as children of the server; modules that are absent are left out."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(IMPORTED)
    return forking
