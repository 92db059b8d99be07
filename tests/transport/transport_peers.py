"""Two ends of a transport, in this process or in another, for the conformance suite."""

import random
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from hetcomm import _core

OWN_TAGS = 0xFFF << 52  # the bits of transports that every receive compares
BOUND = 120.0  # seconds; far above the time of any test, so that a hang fails


def finish(
    transports: list[_core.Transport], requests: list[_core.Request], bound: float = BOUND
) -> None:
    """Polls until all requests are done. Fails if that takes too long."""
    until(transports, lambda: all(request.done for request in requests), bound)


def until(
    transports: list[_core.Transport], condition: Callable[[], bool], bound: float = BOUND
) -> None:
    deadline = time.monotonic() + bound
    while not condition():
        assert time.monotonic() < deadline, "not done in time"
        for transport in transports:
            transport.progress()


def pattern(size: int, seed: int) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size))


def failed(request: _core.Request) -> bool:
    try:
        request.check()
    except _core.Error:
        return True
    return False


class Pair:
    """Two connected transports in this process."""

    def __init__(self, make: Callable[[], _core.Transport], same_host: bool) -> None:
        self.a, self.b = make(), make()
        self.both = [self.a, self.b]
        self.to_b = self.a.connect(self.b.address(same_host), 1)
        self.to_a = self.b.connect(self.a.address(same_host), 0)
        hellos = [self.to_b.send(0, b"hello"), self.to_a.send(0, b"hello")]
        hellos += [end.recv(0, bytearray(5)) for end in self.both]
        finish(self.both, hellos)


Child = Callable[[_core.Transport, _core.Link, Connection], None]


def run_child(
    make: Callable[[], _core.Transport], same_host: bool, connection: Connection, body: Child
) -> None:
    transport = make()
    connection.send(transport.address(same_host))
    body(transport, transport.connect(connection.recv(), 0), connection)


def child_echo(transport: _core.Transport, link: _core.Link, connection: Connection) -> None:
    """Sends back every message under its tag + 1 until an empty one arrives, then closes."""
    while True:
        buffer = bytearray(8 << 20)
        receive = transport.recv(0, buffer, mask=OWN_TAGS)
        assert transport.wait([receive], BOUND)
        receive.check()
        if receive.bytes == 0:
            break
        reply = link.send(receive.tag + 1, memoryview(buffer)[: receive.bytes])
        assert transport.wait([reply], BOUND)
        reply.check()
    link.close(flush=True)
    until([transport], lambda: link.closed)


def child_send_and_leave(
    transport: _core.Transport, link: _core.Link, connection: Connection
) -> None:
    sends = [link.send(tag, pattern(100_000, tag)) for tag in range(20)]
    link.close(flush=True)
    until([transport], lambda: link.closed)
    for send in sends:
        send.check()
    connection.send("closed")
    connection.recv()  # the worker leaves only after the parent has received everything


def child_meet_and_wait(
    transport: _core.Transport, link: _core.Link, connection: Connection
) -> None:
    hello = link.send(1, b"hello")
    assert transport.wait([hello], BOUND)
    connection.send("ready")
    connection.recv()


def child_announce_large_send(
    transport: _core.Transport, link: _core.Link, connection: Connection
) -> None:
    send = link.send(2, bytearray(8 << 20))
    assert transport.wait([link.send(1, b"hello")], BOUND)
    while not send.done:
        transport.progress()


def child_begin_large_send(
    transport: _core.Transport, link: _core.Link, connection: Connection
) -> None:
    send = link.send(2, bytearray(256 << 20))
    connection.send("ready")
    while not send.done:
        transport.progress()
        time.sleep(0.001)  # slow enough that the parent kills it in the middle
    connection.recv()


def leave_everything_open(make: Callable[[], _core.Transport], same_host: bool) -> None:
    pair = Pair(make, same_host)
    sys.modules["_kept_until_the_interpreter_ends"] = pair  # type: ignore[assignment]
    for tag in range(4):
        pair.to_b.send(tag, bytearray(1 << 20))
        pair.b.recv(100 + tag, bytearray(8))
    pair.a.progress()
