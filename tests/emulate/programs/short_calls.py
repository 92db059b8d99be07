"""Short calls and messages between all ranks, compared with the expected results."""

import numpy as np

import hetcomm

with hetcomm.Communicator.from_env(timeout=20.0) as communicator:
    rank, size = communicator.rank, communicator.size
    for call in range(200):
        communicator.barrier()
        assert communicator.all_reduce(np.full(1, rank + call))[0] == sum(range(size)) + size * call
        into = np.empty(3, np.int32)
        work = communicator.recv(into, (rank - 1) % size, async_op=True)
        communicator.send(np.full(3, call * size + rank, np.int32), (rank + 1) % size)
        work.wait()
        assert (into == call * size + (rank - 1) % size).all()
    print("right", flush=True)
