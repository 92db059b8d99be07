"""Collectives and messages over hosts with several NICs; argv: the number of elements, and
settings. The setting ROUNDS repeats them.

Prints "right", and the path to each rank of another host.
"""

import os
import sys

import numpy as np

import hetcomm

for setting in sys.argv[2:]:
    key, value = setting.split("=")
    os.environ[key] = value

count = int(sys.argv[1])
with hetcomm.Communicator.from_env() as communicator:
    rank, size = communicator.rank, communicator.size
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-1000, 1000, count, dtype=np.int32) for _ in range(size)]
    for _ in range(int(os.environ.get("ROUNDS", "1"))):
        assert (communicator.all_reduce(inputs[rank]) == sum(inputs)).all()
        found = communicator.broadcast(inputs[rank].copy(), root=size - 1)
        assert (found == inputs[-1]).all()
        after, before = (rank + 1) % size, (rank - 1) % size
        for part in (count, 3, count // 2, 1):  # long and short ones of one tag keep their order
            into = np.zeros(part, np.int32)
            received = communicator.recv(into, before, async_op=True)
            communicator.send(inputs[rank][:part], after)
            received.wait()
            assert (into == inputs[before][:part]).all()
    paths = {communicator.path_to(peer) for peer in range(size) if peer != rank}
    print("right;", "; ".join(sorted(path for path in paths if "tcp" in path)), flush=True)
