"""A rank of rank.py in an emulated cluster: cluster_rank.py SOCKET FOLDER TIMEOUT.

The orders come over a connection to the socket, which also shows the process id to the test.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from rank import main

if __name__ == "__main__":
    place, folder, timeout = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as orders:
        orders.connect(place)
        orders.sendall(f"{os.environ['RANK']}\n".encode())
        os.dup2(orders.fileno(), 0)
        os.dup2(orders.fileno(), 1)
    main("core", folder, os.environ["RANK"], os.environ["WORLD_SIZE"], timeout)
