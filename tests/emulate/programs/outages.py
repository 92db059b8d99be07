"""The first host's network is down for a while, several times, while all ranks call collectives.

argv: the seconds of each outage. Prints the number of calls of each rank, or its error.
"""

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
from pyroute2 import IPRoute

import hetcomm

sys.path.append(str(Path(__file__).parents[2] / "injection"))

from network_change import make

PAUSE = 4.0  # seconds between outages, longer than TCP waits before it sends again
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
over = threading.Event()


def interrupt() -> None:
    with IPRoute() as routes:
        for seconds in map(float, sys.argv[1:]):
            time.sleep(PAUSE)
            make(routes, "down", "eth0", ())
            time.sleep(seconds)
            make(routes, "up", "eth0", ())
    time.sleep(PAUSE)
    over.set()


with hetcomm.Communicator.from_env(timeout=60.0) as communicator:
    calls = 0
    if rank == 0:
        threading.Thread(target=interrupt, daemon=True).start()
    try:
        while communicator.all_reduce(np.array([over.is_set()], np.int32))[0] == 0:
            assert communicator.all_reduce(np.array([rank + 1]))[0] == size * (size + 1) // 2
            calls += 1
            time.sleep(0.01)
        print("right:", calls, flush=True)
    except hetcomm.Error as error:
        print("failed:", type(error).__name__, error, flush=True)
