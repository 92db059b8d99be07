"""Bytes that ranks really send to the ports of others, and changed forms of them."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

from mutation import mutated

ALL_PROTOCOLS = 3  # ETH_P_ALL
MOST = 1 << 16  # bytes kept of a stream
WRAP = 1 << 32  # of TCP's sequence numbers


def why_not() -> str:
    """Why this process cannot record; "" if it can."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0).close()
    except OSError as error:
        return f"packet sockets: {error.strerror}"
    return ""


class Recording:
    """The begin of every TCP stream over the loopback, from the constructor to stop()."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS)
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        self._socket.bind(("lo", ALL_PROTOCOLS))
        self._socket.settimeout(0.1)
        self._parts: dict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()

    def _record(self) -> None:
        while not self._over.is_set():
            try:
                packet = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            if packet[:1] and packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
                self._keep(packet[4 * (packet[0] & 15) :])

    def _keep(self, segment: bytes) -> None:
        source, target, sequence = struct.unpack("!HHI", segment[:8])
        data = segment[4 * (segment[12] >> 4) :]
        parts = self._parts[source, target]
        if data and sum(map(len, parts.values())) < MOST:
            parts.setdefault(sequence, data)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def streams(self, ports: Sequence[int]) -> dict[int, list[bytes]]:
        """[port] -> the streams to it, of these ports."""
        found: dict[int, list[bytes]] = {port: [] for port in ports}
        for (_, target), parts in self._parts.items():
            if target in found and parts:
                found[target].append(joined(parts))
        return found


def joined(parts: Mapping[int, bytes]) -> bytes:
    """The stream of parts by sequence number, in the order of recording. The first is about where
    the stream begins."""
    first = next(iter(parts))

    def distance(at: int) -> int:
        return (at - first + WRAP // 2) % WRAP

    return b"".join(parts[at] for at in sorted(parts, key=distance))


def changed(chance: random.Random, stream: bytes, others: Sequence[bytes]) -> tuple[str, bytes]:
    """What was done to the stream, and the result."""
    how = chance.choice(("replayed", "truncated", "garbled", "random"))
    if how == "truncated":
        stream = stream[: chance.randrange(len(stream) + 1)]
    elif how == "garbled":
        stream = mutated(chance.randrange(1 << 30), "stream", 0, [stream, *others])
    elif how == "random":
        stream = chance.randbytes(chance.choice((1, 40, 200, 5000)))
    return how, stream
