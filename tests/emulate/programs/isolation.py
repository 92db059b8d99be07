"""Rank 0 makes an abstract socket and a file in /dev/shm. Every rank prints which of them it finds.

The first argument is a number of bytes. Rank 0 then sends these to rank 1, on its own host.
"""

import os
import socket
import sys

from meeting import RANK, meet, wait_for_all

ADDRESS, FILE = "\0hetcomm-isolation", "/dev/shm/hetcomm-isolation"
peers = meet()
if RANK == 0:
    server = socket.socket(socket.AF_UNIX)
    server.bind(ADDRESS)
    server.listen()
    with open(FILE, "w") as file:
        file.write("x")
wait_for_all(peers)
with socket.socket(socket.AF_UNIX) as client:
    reached = client.connect_ex(ADDRESS) == 0
print("socket", reached, "file", os.path.exists(FILE), "host", socket.gethostname())
wait_for_all(peers)
count = int(sys.argv[1])
if RANK == 0:
    peers[0].sendall(bytes(count))
elif RANK == 1:
    while count:
        count -= len(peers[0].recv(min(count, 1 << 16)))
wait_for_all(peers)
