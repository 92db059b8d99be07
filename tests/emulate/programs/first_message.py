"""The first host's network is down for a moment, as its rank opens the link to rank 2.

Rank 2 prints what it receives. A rank that fails prints its error.
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

OUTAGE = 0.5  # seconds
rank = int(os.environ["RANK"])


def change(word: str) -> None:
    with IPRoute() as routes:
        make(routes, word, "eth0", ())


with hetcomm.Communicator.from_env(timeout=60.0) as communicator:
    try:
        if rank == 0:
            change("down")
            threading.Timer(OUTAGE, change, ["up"]).start()
            communicator.send(np.arange(3), 2)
        elif rank == 2:
            time.sleep(OUTAGE)  # a receive opens the link, too
            print("received:", communicator.recv(np.zeros(3, int), 0), flush=True)
        communicator.barrier()
    except hetcomm.Error as error:
        print("failed:", type(error).__name__, error, flush=True)
