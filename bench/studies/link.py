"""Rates of plain TCP between the first two hosts of a cluster: link.py RESULT ADDRESS=RATE...

Every rank runs it; one rank of each of the two hosts measures. For each NIC of the first host (its
address, and its rate in bits per second, 0 if it is not shaped): bytes per second of each direction
while both are busy. Then the round trip of 8 bytes between ends that poll.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

PORT, BOUND, SECONDS, FASTEST = 29700, 30.0, 0.2, 8e9
CHUNK, TURNS, ROUNDS = 256 << 10, 4, 1000


def connect(host: int, address: str) -> socket.socket:
    """Host 0 listens."""
    if host == 0:
        with socket.create_server((address, PORT)) as server:
            server.settimeout(BOUND)
            connection, _ = server.accept()
    else:
        deadline = time.monotonic() + BOUND
        while True:
            try:
                connection = socket.create_connection((address, PORT), BOUND)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
    connection.settimeout(BOUND)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def rate_of(connection: socket.socket, total: int) -> float:
    """Received bytes per second, while sending as many."""
    chunk, place = bytes(CHUNK), bytearray(CHUNK)
    chunks = max(total // CHUNK, 4)

    def send() -> None:
        for _ in range(chunks):
            connection.sendall(chunk)

    meet(connection)  # else data sent before the other end's clock starts would be free
    start = time.perf_counter()
    sender = threading.Thread(target=send)
    sender.start()
    left = chunks * CHUNK
    while left:
        got = connection.recv_into(place, min(left, CHUNK))
        if not got:
            raise ConnectionError("the other end has gone")
        left -= got
    seconds = time.perf_counter() - start
    sender.join()
    return chunks * CHUNK / seconds


def meet(connection: socket.socket) -> None:
    connection.sendall(b".")
    if connection.recv(1) != b".":
        raise ConnectionError("the other end has gone")


def round_trip_of(connection: socket.socket, first: bool) -> float:
    message, place = bytes(8), bytearray(8)
    connection.setblocking(False)
    deadline = time.monotonic() + BOUND

    def receive() -> None:
        while True:
            try:
                connection.recv_into(place)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError("no answer") from None

    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        if first:
            connection.send(message)
            receive()
        else:
            receive()
            connection.send(message)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main(result: Path, nics: list[str]) -> None:
    host = int(os.environ["GROUP_RANK"])
    if host > 1 or os.environ["LOCAL_RANK"] != "0":
        return
    found = []
    for nic in nics:
        address, _, rate = nic.partition("=")
        with connect(host, address) as connection:
            total = int((int(rate) or FASTEST) / 8 * SECONDS)
            rates_seen = [rate_of(connection, total) for _ in range(TURNS)]
            found.append(statistics.median(rates_seen[1:]))  # the window opens in the first one
    with connect(host, nics[0].partition("=")[0]) as connection:
        round_trip = round_trip_of(connection, host == 0)
    if host == 0:
        content = {"bytes_per_second": found, "round_trip": round_trip}
        result.write_text(json.dumps(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
