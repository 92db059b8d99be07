"""A connection of a client to hetcomm's own store."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Generator

from hetcomm.store_protocol import ANSWER

PIECE = 64 << 10  # bytes that are read in advance
_RESET = struct.pack("ii", 1, 0)
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

# Takes the bytes of the length that it yields, or after None the answer to a wait.
Conversation = Generator[int | None, bytes, None]


class Connection:
    """One end of a connection. Its conversation yields the bytes that it needs next."""

    __slots__ = (
        "ahead", "answered", "answers", "conversation", "key", "name", "number", "received",
        "since", "socket", "until", "wanted", "watched", "will",
    )  # fmt: skip

    def __init__(self, number: int, found: socket.socket | None) -> None:
        self.number, self.socket = number, found
        self.since = time.monotonic()
        self.received = bytearray()
        self.ahead = 0  # bytes that may be read beyond those wanted
        self.answers: deque[memoryview] = deque()
        self.answered = False
        self.wanted: int | None = 0  # None: it waits for a key
        self.key: bytes | None = None  # for which it waits
        self.until = 0.0
        self.name = b""
        self.watched = 0  # events
        self.will: tuple[bytes, bytes] | None = None  # a key and its value, if it ends now
        self.conversation: Conversation

    @property
    def room(self) -> int:
        return (self.wanted or 0) + self.ahead - len(self.received)

    def address(self) -> str:
        try:
            found = self.socket.getpeername()[0] if self.socket is not None else ""
        except OSError:  # it is gone
            found = ""
        return found.removeprefix("::ffff:") or "an unknown address"

    def answer(self, sign: bytes, value: bytes) -> None:
        self.answered = True
        head = ANSWER.pack(sign, len(value))
        if len(value) <= PIECE:
            self.answers.append(memoryview(head + value))
        else:
            self.answers += memoryview(head), memoryview(value)

    def advance(self, part: bytes) -> None:
        """Gives the conversation what it waits for. Raises StopIteration at its end."""
        try:
            self.wanted = self.conversation.send(part)
        finally:
            self._send()

    def transfer(self, events: int) -> None:
        """Reads, writes and goes on with the conversation. Raises StopIteration at its end."""
        if self.socket is None:  # dropped meanwhile
            return
        if events & ~select.EPOLLOUT and self.room > 0:
            try:
                data = self.socket.recv(min(self.room, 1 << 20), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionError("the client is gone")
            self.received += data
        self._send()
        while not self.answers and self.wanted is not None and len(self.received) >= self.wanted:
            part = bytes(memoryview(self.received)[: self.wanted])
            del self.received[: self.wanted]
            self.advance(part)

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.answers and self.socket is not None:
                sent = self.socket.send(self.answers[0], _SEND)
                self.answers[0] = self.answers[0][sent:]
                if not self.answers[0]:
                    self.answers.popleft()

    def watch(self, epoll: select.epoll) -> None:
        """Nothing is read while answers wait, or beyond what is needed and a piece."""
        if self.socket is None:
            return
        events = select.EPOLLOUT if self.answers else 0
        if not events and self.room > 0:
            events = select.EPOLLIN
        if events == self.watched:
            return
        if not self.watched:
            epoll.register(self.socket.fileno(), events)
        elif not events:
            epoll.unregister(self.socket.fileno())
        else:
            epoll.modify(self.socket.fileno(), events)
        self.watched = events

    def close(self, epoll: select.epoll) -> None:
        found, self.socket = self.socket, None
        if found is None:
            return
        if self.watched:
            epoll.unregister(found.fileno())
        with found, contextlib.suppress(OSError):  # the client has closed
            if self.answered:
                found.shutdown(socket.SHUT_RDWR)  # also for copies of forks
            else:  # a reset leaves nothing in the kernel
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
