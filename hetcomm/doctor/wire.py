"""Connections between hosts: whether they form, their clocks, and their rates.

The first rank of each host speaks for the host. Each link is one connection from a NIC of one host
to a NIC of another, at a port that the kernel chooses, as hetcomm's own connections are. First all
links of all hosts connect at once. Then pairs of hosts measure rates in rounds, so that each host
measures one link at a time.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

CONNECT = 1.5  # seconds for a connection, with room for one lost packet, as set-up gives a rail
RATES = 2.4  # seconds for the rates of all rounds together
LONGEST, SHORTEST = 0.15, 0.02  # seconds for the rate of one link
TURN = 3.0  # seconds until the other end of a pair has finished its round before
BOUND = 7.0  # seconds for everything
CLOCK_EXCHANGES, CLOCK = 8, struct.Struct("!d")
HELLO = struct.Struct("!16si")  # the job's token, the number of the link
ACCEPTED, GRANTED, BEGINS = b"+", b"g", b"b"
LOOPBACK = -1  # the number of the link to the own host
BLOCK = 1 << 18
MOST_THREADS = 64


def new_token() -> str:
    """Keeps connections of strangers out."""
    return secrets.token_hex(16)


def listen() -> socket.socket:
    """A listener on a port of the kernel's choice, at all addresses."""
    with suppress(OSError):
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
    return socket.create_server(("", 0), backlog=1024)


class Speaker:
    """The end of one host: serves its listener, and makes the connections from it.

    Used by one thread; serves by threads of its own, which end with their connections.

    links: all links of the job, as dictionaries with the fields of `cluster.Link`.
    """

    def __init__(
        self, listener: socket.socket, token: str, host: int, links: Sequence[dict[str, Any]]
    ) -> None:
        self._listener, self._token, self._host = listener, bytes.fromhex(token), host
        self._links = links
        self._end = time.monotonic() + BOUND
        self._changed = threading.Condition()
        self._partner = -1  # the host that may send now
        self._accepted: set[int] = set()
        self._rates: dict[int, float | None] = {}  # of links that have ended
        self._connections: dict[int, socket.socket] = {}  # from this host

    def connect(self) -> dict[int, dict[str, Any]]:
        """Connects from here to all hosts. Returns [link] -> why, offset and error of the links."""
        threading.Thread(target=self._serve, daemon=True).start()
        own = [i for i, link in enumerate(self._links) if link["source"] == self._host]
        with ThreadPoolExecutor(min(len(own), MOST_THREADS) or 1) as threads:
            return dict(zip(own, threads.map(self._connect, own), strict=True))

    def measure(
        self, rounds: Sequence[Sequence[tuple[int, int]]], slot: float
    ) -> tuple[dict[int, float | None], float | None]:
        """Measures for `slot` seconds a link, after all hosts have connected.

        Returns [link] -> rate of the links to here, and the rate of the loopback.
        """
        reference = self._loopback(slot)
        for pairs in rounds:
            pair = next((pair for pair in pairs if self._host in pair), None)
            if pair is not None:
                self._measure(pair[0] + pair[1] - self._host, pair[0] == self._host, slot)
        with self._changed:
            rates = {link: rate for link, rate in self._rates.items() if link != LOOPBACK}
        return rates, reference

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()

    def _left(self, most: float) -> float:
        return max(min(most, self._end - time.monotonic()), 0.01)

    def _connect(self, number: int) -> dict[str, Any]:
        link = self._links[number]
        try:
            connection = self._open(
                number, (link["to_address"], link["port"]), link["from_address"]
            )
            offset, error = _compare_clocks(connection)
        except OSError as error_:
            return {"why": reason(error_)}
        self._connections[number] = connection
        return {"why": "", "offset": offset, "error": error}

    def _open(
        self, number: int, target: tuple[str, int], source: str | None = None
    ) -> socket.socket:
        connection = socket.create_connection(
            target, self._left(CONNECT), (source, 0) if source else None
        )
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(HELLO.pack(self._token, number))
            if _receive(connection, 1) != ACCEPTED:
                raise ConnectionError("another program answers")
        except BaseException:
            connection.close()
            raise
        return connection

    def _loopback(self, slot: float) -> float | None:
        with suppress(OSError):
            port = self._listener.getsockname()[1]
            with self._open(LOOPBACK, ("127.0.0.1", port)) as connection:
                _compare_clocks(connection)
                self._send(connection, slot)
            self._await({LOOPBACK}, 1.0)
        return self._rates.get(LOOPBACK)

    def _measure(self, partner: int, first: bool, slot: float) -> None:
        """Both directions of one pair, one after the other."""
        with self._changed:
            self._partner = partner
            self._changed.notify_all()
        for sends in (first, not first):
            if sends:
                for number in self._between(self._host, partner):
                    if number in self._connections:
                        with suppress(OSError):
                            self._send(self._connections[number], slot)
            else:
                incoming = self._between(partner, self._host)
                self._await(self._accepted & incoming, TURN)

    def _between(self, source: int, target: int) -> set[int]:
        ends = (source, target)
        return {i for i, link in enumerate(self._links) if (link["source"], link["target"]) == ends}

    def _await(self, numbers: set[int], bound: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: numbers <= self._rates.keys(), self._left(bound))

    def _send(self, connection: socket.socket, slot: float) -> None:
        """Sends for `slot` seconds, and waits until the receiver closes."""
        connection.settimeout(self._left(TURN))
        if _receive(connection, 1) != GRANTED:
            return
        connection.sendall(BEGINS)
        block = bytes(BLOCK)
        until = time.monotonic() + slot
        connection.settimeout(self._left(2 * slot + 0.5))
        while time.monotonic() < until:
            connection.send(block)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # close() has closed the listener
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """One connection from its greeting to its rate."""
        number = None
        try:
            with connection:
                connection.settimeout(self._left(CONNECT))
                token, claimed = HELLO.unpack(_receive(connection, HELLO.size))
                if token != self._token or not LOOPBACK <= claimed < len(self._links):
                    return  # a stranger
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                number = claimed
                with self._changed:
                    self._accepted.add(number)
                connection.sendall(ACCEPTED)
                for _ in range(CLOCK_EXCHANGES):
                    _receive(connection, 1)
                    connection.sendall(CLOCK.pack(time.time()))
                rate = self._grant_and_receive(connection, number)
        except OSError:
            rate = None
        if number is not None:
            with self._changed:
                self._rates[number] = rate
                self._changed.notify_all()

    def _grant_and_receive(self, connection: socket.socket, number: int) -> float | None:
        with self._changed:
            if number != LOOPBACK:
                sender = self._links[number]["source"]
                if not self._changed.wait_for(lambda: self._partner == sender, self._left(BOUND)):
                    return None
        connection.settimeout(self._left(TURN))  # the sender may receive first
        connection.sendall(GRANTED)
        if _receive(connection, 1) != BEGINS:
            return None
        connection.settimeout(self._left(2 * LONGEST + 0.5))
        return receive_rate(connection)


def receive_rate(connection: socket.socket) -> float | None:
    """Bytes per second until the sender ends, at most for LONGEST * 2 seconds, without the first
    third, in which TCP speeds up. 0 if nothing came, None if too little to tell."""
    buffer = bytearray(BLOCK)
    arrivals: list[tuple[float, int]] = []
    total = 0
    with suppress(OSError):
        while got := connection.recv_into(buffer):
            total += got
            arrivals.append((time.monotonic(), total))
            if arrivals[-1][0] - arrivals[0][0] > 2 * LONGEST:
                break
    if len(arrivals) < 2:
        return None if total else 0.0
    first, last = arrivals[0][0], arrivals[-1][0]
    begin, before = next(each for each in arrivals if each[0] >= first + (last - first) / 3)
    return (total - before) / (last - begin) if last > begin else None


def reason(error: OSError) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT:g} s"
    return (error.strerror or str(error)).lower()


def plan_rates(
    rounds: list[list[tuple[int, int]]], links: int
) -> tuple[list[list[tuple[int, int]]], float]:
    """The rounds that fit into RATES, and the seconds of a link. links: of a pair, both ways."""
    if not rounds or not links:
        return [], SHORTEST
    slot = min(max(RATES / (len(rounds) * links), SHORTEST), LONGEST)
    return rounds[: max(int(RATES / (slot * links)), 1)], slot


def _compare_clocks(connection: socket.socket) -> tuple[float, float]:
    """Seconds that the other clock is ahead, and a bound on the error: Cristian's algorithm
    (Distributed Computing 3, 1989), the shortest of several exchanges."""
    best = (0.0, float("inf"))
    for _ in range(CLOCK_EXCHANGES):
        start = time.monotonic()
        before = time.time()
        connection.sendall(b"c")
        (other,) = CLOCK.unpack(_receive(connection, CLOCK.size))
        half = (time.monotonic() - start) / 2
        if half < best[1]:
            best = (other - before - half, half)
    return best


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the other end closed the connection")
        parts += part
    return parts
