"""Collectives over hosts in zones; argv: the number of elements of a block. Prints "right"."""

import sys

import numpy as np

import hetcomm

count = int(sys.argv[1])
with hetcomm.Communicator.from_env() as communicator:
    rank, size = communicator.rank, communicator.size
    rng = np.random.default_rng(1)
    inputs = rng.integers(-1000, 1000, (size, size * count), dtype=np.int32)
    total = inputs.sum(axis=0)
    assert (communicator.all_reduce(inputs[rank]) == total).all()
    mine = slice(rank * count, (rank + 1) * count)
    assert (communicator.reduce_scatter(inputs[rank]) == total[mine]).all()
    gathered = communicator.all_gather(inputs[rank, :count])
    assert (gathered.reshape(-1) == inputs[:, :count].reshape(-1)).all()
    for root in (0, size - 1):
        assert (communicator.broadcast(inputs[rank].copy(), root=root) == inputs[root]).all()
        reduced = communicator.reduce(inputs[rank], root=root)
        assert rank != root or (reduced == total).all()
    print("right", flush=True)
