"""Stand-ins for ranks at the control connections."""

from __future__ import annotations

import contextlib
import hmac
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from communicators import BOUND

from hetcomm import _core

# kinds of news
FAILURE, STALL, GOODBYE, REFUSAL, FIGURES, INQUIRY = range(6)
ANSWER, SILENCE, RAIL, CULPRIT, FIRST_CALL = range(6, 11)


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
    """The address of a rank's first control port, from the rank's record in the store."""
    found = re.findall(rb"(\d+\.\d+\.\d+\.\d+) (\d+)", member)
    assert found, member
    return found[0][0].decode(), int(found[0][1])


def with_contact(member: bytes, port: int) -> bytes:
    """The same record with another address."""
    old = re.search(rb"(?:\d+\.\d+\.\d+\.\d+ \d+ ?)+", member)
    assert old is not None, member
    return member.replace(packed(old[0]), packed(b"127.0.0.1 %d" % port))


def unpacked(record: bytes, kinds: str) -> list[int | bytes]:
    """The first values of a record: "n" a number, "t" a text."""
    values: list[int | bytes] = []
    for kind in kinds:
        number = struct.unpack("<Q", record[:8])[0]
        values.append(record[8 : 8 + number] if kind == "t" else number)
        record = record[8 + number * (kind == "t") :]
    return values


def word_of(member: bytes) -> bytes:
    """The random word of a rank's record; csrc/bootstrap/member.cc has the order."""
    word = unpacked(member, "nttnttnttttt")[-1]
    assert isinstance(word, bytes) and len(word) == 16
    return word


def group_key_of(shared: dict[str, bytes], job_key: bytes = b"") -> bytes:
    """The key of the control connections; without a job key who reads the store knows it."""
    members = sorted(key for key in shared if key.startswith("member/"))
    words = [word_of(shared[key]) for key in members]
    return hmac.digest(job_key, b"group key" + b"".join(words), "sha256")


class Peer:
    """A control connection to rank `to` by a program that passes for `rank`."""

    def __init__(self, contact: tuple[str, int], key: bytes, to: int, rank: int) -> None:
        self.key = key
        self.socket = socket.create_connection(contact, BOUND)
        own = bytes(32)
        head = packed(rank) + own
        self.socket.sendall(head + hmac.digest(key, b"greeting" + packed(to) + head, "sha256"))
        self.context = packed(to, rank) + self.receive(32) + own
        self.proof = self.receive(32)  # none for another key
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(self.digest(b"proof of connector"))
        self.sent = 0

    def digest(self, purpose: bytes) -> bytes:
        return hmac.digest(self.key, purpose + self.context, "sha256")

    def sealed(self, record: bytes) -> bytes:
        key = self.digest(b"records of connector")
        self.sent += 1
        return packed(record) + hmac.digest(key, packed(self.sent - 1) + record, "sha256")

    def send(self, record: bytes) -> None:
        self.socket.sendall(self.sealed(record))

    def receive(self, count: int) -> bytes:
        """So many bytes; fewer if the connection ends first."""
        found = b""
        with contextlib.suppress(ConnectionError):
            while len(found) < count and (part := self.socket.recv(count - len(found))):
                found += part
        return found

    def read_to_the_end(self) -> None:
        self.socket.settimeout(BOUND)
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(4096):
                pass

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def introduced(shared: dict[str, bytes], to: int, rank: int) -> Peer:
    """A control connection to rank `to` by a peer that proves to be `rank`."""
    peer = Peer(contact_of(shared[f"member/{to}"]), group_key_of(shared), to, rank)
    assert peer.proof == peer.digest(b"proof of acceptor")
    return peer


def news(origin: int, number: int, body: bytes) -> bytes:
    return packed(origin, number, body)


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
