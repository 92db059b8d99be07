"""The first host's network fails in the middle of a job.

argv: how, and when. "down" switches the NIC off, "swallowed" loses all packets that leave the first
host, and "gone" also kills the first rank, whose connections stay half open. When: "amid"
collectives, or before the "first" message to rank 2.
Prints the error of each rank, and the seconds from the failure to the error.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from pyroute2 import IPRoute

import hetcomm

sys.path.append(str(Path(__file__).parents[2] / "running"))

from swallowing import swallow

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def break_network() -> None:
    with IPRoute() as routes:
        if sys.argv[1] == "down":
            routes.link("set", index=routes.link_lookup(ifname="eth0")[0], state="down")
        else:
            swallow(routes, "eth0", [f"198.18.0.{host + 1}" for host in range(1, size)])
    if sys.argv[1] == "gone":
        os.kill(os.getpid(), signal.SIGKILL)


with hetcomm.Communicator.from_env(timeout=100.0) as communicator:
    mine = np.full(100_000, rank + 1, np.int32)
    try:
        for _ in range(3 if sys.argv[2] == "amid" else 0):
            assert (communicator.all_reduce(mine) == size * (size + 1) // 2).all()
        communicator.barrier()
        begin = time.monotonic()
        if rank == 0:
            break_network()
            if sys.argv[2] == "first":
                communicator.send(mine, 2)
        while True:
            communicator.all_reduce(mine)
            begin = time.monotonic()
    except hetcomm.Error as error:
        print("failed:", f"{time.monotonic() - begin:.1f}", type(error).__name__, error, flush=True)
