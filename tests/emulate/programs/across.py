"""Ranks 0 and 1 send to ranks 2 and 3; argv: elements, rounds. Prints the seconds of a round."""

import sys
import time

import numpy as np

import hetcomm

count, rounds = map(int, sys.argv[1:])
with hetcomm.Communicator.from_env() as communicator:
    rank = communicator.rank
    data = np.zeros(count, np.int32)
    communicator.barrier()
    for number in range(rounds + 1):
        if number == 1:  # the first round opens the links
            communicator.barrier()
            started = time.perf_counter()
        if rank < 2:
            communicator.send(data, rank + 2)
        else:
            communicator.recv(data, rank - 2)
    communicator.barrier()
    print("seconds", (time.perf_counter() - started) / rounds, flush=True)
