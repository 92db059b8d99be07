"""eth1 of the first host fails in the middle of an operation, and the job goes on.

argv: how (see breaking.py), for which host or "everybody", and the operation: all_reduce,
all_gather, or messages in a ring. Compares every result with NumPy. Ends some calls after the plans
leave out the NIC: with the same call on all ranks, or the job would stand still.
"""

import os
import sys

import numpy as np
from breaking import HOSTS, break_nic

import hetcomm

how, whom, operation = sys.argv[1:4]
others = HOSTS[1:] if whom == "everybody" else [whom]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
COUNT = 2_000_000
AFTERWARDS = 3  # calls


def values(of: int, call: int) -> np.ndarray:
    return np.random.default_rng([of, call]).integers(-1000, 1000, COUNT, dtype=np.int32)


def begin(communicator: hetcomm.Communicator, call: int) -> tuple[list, np.ndarray, np.ndarray]:
    """The works of an operation, its result, and the expected result."""
    mine = values(rank, call)
    everything = [values(each, call) for each in range(size)]
    if operation == "all_reduce":
        work = communicator.all_reduce(mine, out=mine, async_op=True)
        return [work], mine, sum(everything)
    if operation == "all_gather":
        result = np.empty((size, COUNT), np.int32)
        work = communicator.all_gather(mine, out=result, async_op=True)
        return [work], result, np.stack(everything)
    result = np.empty(COUNT, np.int32)
    before, after = (rank - 1) % size, (rank + 1) % size
    works = []
    for part in np.array_split(np.arange(COUNT), 8):  # of one tag, so their order matters
        piece = slice(part[0], part[-1] + 1)
        works.append(communicator.recv(result[piece], before, async_op=True))
        works.append(communicator.send(mine[piece], after, async_op=True))
    return works, result, everything[before]


def finish(works: list, result: np.ndarray, expected: np.ndarray) -> None:
    for work in works:
        work.wait()
    np.testing.assert_array_equal(result, expected)


with hetcomm.Communicator.from_env(timeout=100.0) as communicator:
    one = np.ones(1, np.int32)
    finish(*begin(communicator, 0))
    communicator.barrier()
    rails = communicator.topology.fingerprint
    under_way = begin(communicator, 1)
    if rank == 0:
        break_nic(how, others)
    finish(*under_way)
    calls, left = 1, AFTERWARDS
    while left > 0:
        calls += 1
        finish(*begin(communicator, calls))
        assert communicator.all_reduce(one.copy())[0] == size
        left -= communicator.topology.fingerprint != rails
    topology = communicator.topology
    paths = {communicator.path_to(peer) for peer in range(size) if peer != rank}
    print("right", *sorted(path for path in paths if "tcp" in path), sep="; ")
    bandwidths = [topology.host_bandwidth(host) for host in range(len(topology.hosts))]
    print("bandwidths", *bandwidths, f"{topology.fingerprint:016x}", flush=True)
