"""Stand-ins for ranks at the control connections."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from communicators import BOUND

from hetcomm import _core

FAILURE, STALL, GOODBYE, REFUSAL, FIGURES = range(5)  # kinds of news


def packed(*values: int | bytes) -> bytes:
    """The bytes of a record: numbers of 8 bytes, texts after their length."""
    parts = []
    for value in values:
        if isinstance(value, bytes):
            parts.append(struct.pack("<Q", len(value)) + value)
        else:
            parts.append(struct.pack("<Q", value))
    return b"".join(parts)


class OpenStore(_core.Store):
    """A store of ranks that are threads. The test reads it too. A rank that reads a key gets
    `change(rank, key, value)`."""

    def __init__(
        self,
        shared: dict[str, bytes],
        rank: int,
        change: Callable[[int, str, bytes], bytes] = lambda rank, key, value: value,
    ) -> None:
        super().__init__()
        self.shared, self.rank, self.change = shared, rank, change

    def set(self, key: str, value: bytes) -> None:
        self.shared[key] = value

    def get(self, key: str, timeout: timedelta) -> bytes:
        deadline = time.monotonic() + timeout.total_seconds()
        while key not in self.shared:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody set {key}")
            time.sleep(0.002)
        return self.change(self.rank, key, self.shared[key])


def contact_of(member: bytes) -> tuple[str, int]:
    """The address of a rank's control port, from the rank's record in the store."""
    found = re.findall(rb"(\d+\.\d+\.\d+\.\d+) (\d+)", member)
    assert len(found) == 1, member
    return found[0][0].decode(), int(found[0][1])


def with_contact(member: bytes, port: int) -> bytes:
    """The same record with another address."""
    old = b"%s %d" % (contact_of(member)[0].encode(), contact_of(member)[1])
    return member.replace(packed(old), packed(b"127.0.0.1 %d" % port))


def introduced(shared: dict[str, bytes], to: int, rank: int) -> socket.socket:
    """A control connection to rank `to` by a peer that claims to be `rank`."""
    secret = re.findall(rb"(?:\d+-){8}", shared["member/0"])
    assert len(secret) == 1
    connection = socket.create_connection(contact_of(shared[f"member/{to}"]), BOUND)
    connection.sendall(packed(packed(secret[0], rank)))
    return connection


def news(origin: int, number: int, body: bytes) -> bytes:
    return packed(packed(origin, number, body))


@contextlib.contextmanager
def unresponsive_listener() -> Iterator[socket.socket]:
    """A listener at which connections stay half open, because its queue is full."""
    with socket.socket() as listener, contextlib.ExitStack() as queued:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            one = queued.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener
