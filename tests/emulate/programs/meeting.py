"""A TCP connection from every other rank to rank 0, to pass bytes and to wait for all ranks."""

import os
import socket
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
_PLACE = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def meet() -> list[socket.socket]:
    """Rank 0 gets a connection to each other rank, in rank order. Other ranks get one to rank 0."""
    if RANK == 0:
        with socket.create_server(_PLACE, backlog=WORLD) as server:
            server.settimeout(30)
            peers = {}
            while len(peers) < WORLD - 1:
                connection, _ = server.accept()
                connection.settimeout(30)
                peers[connection.recv(1)[0]] = connection
        return [peers[rank] for rank in sorted(peers)]
    while True:
        try:
            connection = socket.create_connection(_PLACE, timeout=30)
        except ConnectionRefusedError:  # rank 0 is late; the run's timeout bounds this
            time.sleep(0.01)
            continue
        connection.sendall(bytes([RANK]))
        return [connection]


def wait_for_all(peers: list[socket.socket]) -> None:
    """Returns after all ranks have called this function."""
    if RANK == 0:
        for peer in peers:
            assert peer.recv(1) == b"?"
        for peer in peers:
            peer.sendall(b"!")
    else:
        peers[0].sendall(b"?")
        assert peers[0].recv(1) == b"!"
