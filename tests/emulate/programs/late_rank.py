"""Rank argv[1] comes late to each call. Prints the warnings of rank 0."""

import os
import sys
import time
import warnings

os.environ["HETCOMM_WATCH"] = "1"

import numpy as np

import hetcomm

BOUND = 60.0  # seconds
found: list[str] = []


def keep(message: Warning | str, *_: object) -> None:
    if isinstance(message, hetcomm.PerformanceWarning):
        found.append(str(message))


with hetcomm.Communicator.from_env() as communicator:
    warnings.showwarning = keep
    data, over = np.ones(1 << 10, np.float32), np.zeros(1, np.float32)
    begin = time.monotonic()
    while not over[0]:
        for _ in range(10):
            time.sleep(0.005 if str(communicator.rank) == sys.argv[1] else 0)
            communicator.all_reduce(data)
        over[0] = communicator.rank == 0 and bool(found or time.monotonic() > begin + BOUND)
        communicator.broadcast(over)
    print("warned:", *found, flush=True)
