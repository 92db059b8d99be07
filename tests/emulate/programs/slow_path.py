"""All NICs slow down to argv[1] bits per second. Prints the warning of rank 0."""

import os
import sys
import time
import warnings
from pathlib import Path

os.environ["HETCOMM_WATCH"] = "3"

import numpy as np
from pyroute2 import IPRoute

import hetcomm

sys.path.append(str(Path(__file__).parents[2] / "injection"))

from network_change import make

BOUND = 90.0  # seconds; a look every 3 s sees at least 20 calls of 0.04 s on a quiet machine
found: list[str] = []


def keep(message: Warning | str, *_: object) -> None:
    if isinstance(message, hetcomm.PerformanceWarning) and " at best of " in str(message):
        found.append(str(message))


with hetcomm.Communicator.from_env() as communicator:
    warnings.showwarning = keep
    drawn = np.random.default_rng().random(128 << 10, np.float32)  # lossless codecs save little
    data, over = drawn.copy(), np.zeros(1, np.float32)
    with IPRoute() as routes:
        make(routes, "rate", "eth0", sys.argv[1:])
    begin = time.monotonic()
    while not over[0]:
        for _ in range(10):
            data[:] = drawn
            communicator.all_reduce(data)
        over[0] = communicator.rank == 0 and bool(found or time.monotonic() > begin + BOUND)
        communicator.broadcast(over)
    print("warned:", *found, flush=True)
