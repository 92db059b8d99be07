"""Rank argv[1] comes late to each call. Prints the warnings of rank 0."""

import sys
import time

import numpy as np
import until_warned

import hetcomm

data = np.ones(1 << 10, np.float32)


def call(communicator: hetcomm.Communicator) -> None:
    time.sleep(0.005 if str(communicator.rank) == sys.argv[1] else 0)
    communicator.all_reduce(data)


until_warned.run(1, lambda rank: None, call)
