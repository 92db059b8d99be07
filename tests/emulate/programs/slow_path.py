"""Hosts send at only argv[1] bits per second. Prints the warnings of rank 0.

argv[2]: ranks begin "aligned" calls at the same time, and "endless" ones at the end of the last.
argv[3:]: the ranks of the slow hosts.
"""

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

BOUND = 90.0  # seconds
PERIOD = 0.1  # seconds
found: list[str] = []


def keep(message: Warning | str, *_: object) -> None:
    if isinstance(message, hetcomm.PerformanceWarning):
        found.append(str(message))


with hetcomm.Communicator.from_env() as communicator:
    warnings.showwarning = keep
    drawn = np.random.default_rng().random(128 << 10, np.float32)  # lossless codecs save little
    gathered, over = np.empty(communicator.size * drawn.size, np.float32), np.zeros(1, np.float32)
    if str(communicator.rank) in sys.argv[3:]:
        with IPRoute() as routes:
            make(routes, "rate", "eth0", sys.argv[1:2])
    begin = time.monotonic()
    while not over[0]:
        for _ in range(10):
            if sys.argv[2] == "aligned":
                for _ in range(8):  # short calls, which displace no long one
                    communicator.barrier()
                time.sleep(PERIOD - time.time() % PERIOD)  # this clock is the same everywhere
            communicator.all_gather(drawn, gathered)
        over[0] = communicator.rank == 0 and bool(found or time.monotonic() > begin + BOUND)
        communicator.broadcast(over)
    print("warned:", *found, flush=True)
