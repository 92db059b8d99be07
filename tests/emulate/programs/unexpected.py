"""Rank 0 sends long before rank 1 receives; argv: the number of messages, and bytes of each.

Rank 1 prints the growth of its memory until it received, and "right".

Rank 1 prints by how many bytes its memory grew until it received, and "right".
"""

import sys

import numpy as np

import hetcomm

MESSAGES, BYTES = map(int, sys.argv[1:])
# A wait polls the transport, which takes in every message that has come.
TURNS = 300


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


with hetcomm.Communicator.from_env() as communicator:
    word = np.ones(1, np.float32)
    large = np.zeros(1 << 16, np.float32)
    data = np.arange(BYTES // 4, dtype=np.int32)
    communicator.all_reduce(large)
    before = resident()
    if communicator.rank == 0:
        works = [communicator.send(data, 1, tag=tag, async_op=True) for tag in range(MESSAGES)]
    for _ in range(TURNS):
        communicator.all_reduce(large)
    if communicator.rank == 0:
        for work in works:
            work.wait()
    else:
        grown = resident() - before
        into = np.empty_like(data)
        for tag in reversed(range(MESSAGES)):
            into[:] = -1
            communicator.recv(into, 0, tag=tag)
            assert (into == data).all(), tag
        print(grown, "right", flush=True)
    communicator.all_reduce(word)
