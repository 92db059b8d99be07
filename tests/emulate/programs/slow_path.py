"""Hosts send at only argv[1] bits per second. Prints the warnings of rank 0.

argv[2]: ranks begin "aligned" calls at the same time, and "endless" ones at the end of the last.
argv[3:]: the ranks of the slow hosts.
"""

import sys
import time
from pathlib import Path

import numpy as np
import until_warned
from pyroute2 import IPRoute

import hetcomm

sys.path.append(str(Path(__file__).parents[2] / "injection"))

from network_change import make

PERIOD = 0.1  # seconds
data = np.random.default_rng().random(128 << 10, np.float32)  # lossless codecs save little


def slow_down(rank: int) -> None:
    if str(rank) in sys.argv[3:]:
        with IPRoute() as routes:
            make(routes, "rate", "eth0", sys.argv[1:2])


def call(communicator: hetcomm.Communicator) -> None:
    if sys.argv[2] == "aligned":
        for _ in range(8):  # short calls, which displace no long one
            communicator.barrier()
        time.sleep(PERIOD - time.time() % PERIOD)  # this clock is the same everywhere
    communicator.all_gather(data, np.empty(communicator.size * data.size, np.float32))


until_warned.run(3, slow_down, call)
