"""Calls of a group until rank 0 warns of its pace."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable

import numpy as np

import hetcomm

BOUND = 90.0  # seconds


def run(
    watch: int, begin: Callable[[int], None], call: Callable[[hetcomm.Communicator], None]
) -> None:
    """Rank 0 looks every `watch` seconds. Each rank calls begin(rank) once, and prints its
    warnings."""
    os.environ["HETCOMM_WATCH"] = str(watch)
    found: list[str] = []

    def keep(message: Warning | str, *_: object) -> None:
        if isinstance(message, hetcomm.PerformanceWarning):
            found.append(str(message))

    with hetcomm.Communicator.from_env() as communicator:
        warnings.showwarning = keep
        begin(communicator.rank)
        over = np.zeros(1, np.float32)
        end = time.monotonic() + BOUND
        while not over[0]:
            for _ in range(10):
                call(communicator)
            over[0] = communicator.rank == 0 and bool(found or time.monotonic() > end)
            communicator.broadcast(over)
        print("warned:", *found, flush=True)
