"""Rank `sender` sends `count` bytes to the other of two ranks, which prints the bits per second."""

import sys
import time

from meeting import RANK, meet

sender, count = map(int, sys.argv[1:])
(peer,) = meet()
if sender == RANK:
    peer.sendall(bytes(count))
    assert peer.recv(1) == b"!"
else:
    buffer = bytearray(1 << 16)
    received = peer.recv_into(buffer)
    started, first = time.perf_counter(), received
    while received < count:
        received += peer.recv_into(buffer)
    print(8 * (received - first) / (time.perf_counter() - started))
    peer.sendall(b"!")
