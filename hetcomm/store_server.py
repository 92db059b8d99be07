"""The server of hetcomm's own store: one thread and one selector serve all connections."""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import resource
import select
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from itertools import count

from hetcomm import _core
from hetcomm.arguments import check_port
from hetcomm.printable import printable
from hetcomm.store_connection import PIECE, Connection, Conversation
from hetcomm.store_protocol import (
    ANSWER,
    CHALLENGE_BYTES,
    DELETE,
    FOUND,
    GET,
    GREETING,
    LONGEST,
    LONGEST_KEY,
    MAGIC,
    PROOF_SECONDS,
    REFUSED,
    REQUEST,
    SAME_KEY,
    SEAL_BYTES,
    SET,
    WILL,
    seal,
)
from hetcomm.store_values import Values, cost_of

MOST_STRANGERS = 4096  # connections without a greeting; a quarter of the descriptors at most
_LONGEST_VALUE = {SET: LONGEST, GET: 0, DELETE: 0, WILL: 64 << 10}  # bytes, by operation
_MOST_NAMES = 1 << 17  # of processes
_TURN = 64  # connections that are accepted or served in a row
_PAUSE = 0.05  # seconds without accepting after a failure


class TcpStoreServer:
    """Serves a store until it is closed or the process ends.

    A connection is a stranger until it greets, which takes the job key. The oldest stranger makes
    way for a new connection. A greeting may be a copy, so a client also proves the key by a
    challenge before a request is read. See docs/security.md.
    """

    def __init__(self, port: int = 0, *, job_key: bytes | None = None, job: str = "") -> None:
        """Listens on `port`, any free one if 0, of all addresses of this host.

        job_key: HETCOMM_JOB_KEY_FILE's if None. job: its name; clients of other jobs are refused.

        Raises:
            TransportError: the port is taken.
        """
        check_port(port)
        self._key = bytes(_core.job_key()) if job_key is None else job_key
        self._job = job
        self._listener = _listen(port)
        self.port: int = self._listener.getsockname()[1]
        self._queue = select.poll()
        self._queue.register(self._listener, select.POLLIN)
        self._spare = os.open(os.devnull, os.O_RDONLY)  # to refuse when no other is free
        self._over = os.eventfd(0)
        self._epoll = select.epoll()
        for descriptor in (self._listener.fileno(), self._over):
            self._epoll.register(descriptor, select.EPOLLIN)
        self._accepts_after: float | None = None
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._numbers = count()
        self._values = Values()
        # By number, the oldest first. The greeted ones have to prove the key yet.
        self._strangers: OrderedDict[int, Connection] = OrderedDict()
        self._greeted: OrderedDict[int, Connection] = OrderedDict()
        self._proven: dict[int, Connection] = {}
        self._names: set[bytes] = set()  # of all processes so far that have proven the key
        self._refused = ""  # the last client with another job key
        self._refusals = self._garbage = 0
        self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            os.eventfd_write(self._over, 1)
            self._thread.join()

    def wait_until_left(self, others: int, bound: float) -> None:
        """Waits until at most `others` connections are open, for at most `bound` seconds."""
        _wait(lambda: len(self._proven) <= others, bound)

    def processes(self) -> int:
        """The number of processes that have come so far."""
        return len(self._names)

    def wait_until_came(self, processes: int, bound: float) -> None:
        """Waits until so many processes have come, for at most `bound` seconds."""
        _wait(lambda: self.processes() >= processes, bound)

    def _serve(self) -> None:
        """The thread. Clients have their turn before new connections."""
        while True:
            events = dict(self._epoll.poll(self._pause(), _TURN))
            came = events.pop(self._listener.fileno(), 0)
            if events.pop(self._over, 0):
                return self._end()
            for descriptor, kind in events.items():
                if connection := self._connections.get(descriptor):
                    self._attend(connection, kind)
            if came:
                self._accept()
            self._expire(time.monotonic())
            while self._values.answered:
                self._resume(*self._values.answered.popleft())

    def _end(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._epoll.close()
        self._listener.close()
        os.close(self._over)
        self._close_spare()

    def _pause(self) -> float | None:
        ends = [self._values.next_deadline(), self._accepts_after]
        for kind in (self._strangers, self._greeted):
            oldest = next(iter(kind.values()), None)
            ends.append(None if oldest is None else oldest.since + PROOF_SECONDS)
        nearest = min((end for end in ends if end is not None), default=None)
        return None if nearest is None else max(0.0, nearest - time.monotonic())

    def _expire(self, now: float) -> None:
        for kind in (self._strangers, self._greeted):
            while kind and next(iter(kind.values())).since + PROOF_SECONDS <= now:
                self._drop(next(iter(kind.values())))
        self._values.expire(now, self._refused.encode())
        if self._accepts_after is not None and self._accepts_after <= now:
            self._accepts_after = None
            try:
                self._epoll.register(self._listener.fileno(), select.EPOLLIN)
            except OSError:
                self._accepts_after = now + _PAUSE

    # Connections

    def _accept(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = MOST_STRANGERS if limit < 0 else min(MOST_STRANGERS, limit // 4)
        for _ in range(_TURN):
            try:
                found = self._listener.accept()[0]
            except BlockingIOError:
                return
            except OSError as error:
                if not self._queue.poll(0):  # without a descriptor accept() does not look
                    return
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    if self._make_way() or self._refuse(error):
                        continue
                elif error.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                self._accepts_after = time.monotonic() + _PAUSE  # it may fail at once again
                self._epoll.unregister(self._listener.fileno())
                return
            found.setblocking(False)  # whatever socket.setdefaulttimeout() says
            while len(self._strangers) + len(self._greeted) >= most:
                self._make_way()
            connection = Connection(next(self._numbers), found)
            connection.conversation = self.converse(connection)
            connection.wanted = next(connection.conversation)
            self._connections[found.fileno()] = self._strangers[connection.number] = connection
            try:
                connection.watch(self._epoll)
            except OSError:  # no watch of the kernel's is left
                self._drop(connection)

    def _make_way(self) -> bool:
        """Drops the oldest stranger, unless its greeting has come meanwhile."""
        for kind in (self._strangers, self._greeted):
            if kind:
                oldest = next(iter(kind.values()))
                self._attend(oldest, select.EPOLLIN)
                if oldest.number in kind:
                    self._drop(oldest)
                return True
        return False

    def _refuse(self, why: OSError) -> bool:
        """Tells the next client that there is no descriptor."""
        text = (
            f"the process that serves it, {os.getpid()} on {socket.gethostname()}, cannot take "
            f"another connection: {why.strerror}; raise its descriptor limit (ulimit -n)"
        ).encode()
        refused = False
        self._close_spare()
        with contextlib.suppress(OSError), self._listener.accept()[0] as connection:
            refused = True
            connection.setblocking(False)
            connection.sendall(ANSWER.pack(REFUSED, len(text)) + text)
        with contextlib.suppress(OSError):  # another thread has taken the descriptor
            self._spare = os.open(os.devnull, os.O_RDONLY)
        return refused

    def _close_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _drop(self, connection: Connection) -> None:
        for kind in (self._strangers, self._greeted, self._proven):
            kind.pop(connection.number, None)
        self._values.give_up(connection)
        if connection.will and connection.will[0] not in self._values:
            key, value = connection.will
            if not self._values.why_full(cost_of(len(key), len(value))):
                self._values.put(key, value)
        connection.will = None
        connection.conversation.close()
        if connection.socket is not None:
            del self._connections[connection.socket.fileno()]
            connection.close(self._epoll)

    def _resume(self, connection: Connection, sign: bytes, value: bytes) -> None:
        """Ends a wait."""
        if connection.socket is not None:
            connection.answer(sign, value)
            self._attend(connection, 0, waited=True)

    def _attend(self, connection: Connection, events: int, waited: bool = False) -> None:
        """No connection ends the thread."""
        try:
            if waited:
                connection.advance(b"")
            connection.transfer(events)
            connection.watch(self._epoll)
        except (OSError, StopIteration):
            self._drop(connection)
        except Exception:
            logging.getLogger("hetcomm").exception("hetcomm: a client of the store is dropped")
            self._drop(connection)

    # Conversations

    def converse(self, connection: Connection) -> Conversation:
        """Returns, which ends the connection, at bytes of a foreign program."""
        head = yield GREETING.size
        greeted = yield from self._greet(connection, head)
        if not greeted:
            return
        if connection.socket is not None:
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._strangers.pop(connection.number, None)
        self._greeted[connection.number] = connection
        mine = os.urandom(CHALLENGE_BYTES)
        connection.answer(FOUND, mine + seal(self._key, b"server", head + mine))
        proof = yield SEAL_BYTES
        if not hmac.compare_digest(proof, seal(self._key, b"client", head + mine)):
            return  # a copy of a greeting
        self._greeted.pop(connection.number, None)
        self._proven[connection.number] = connection
        connection.ahead = PIECE
        if len(self._names) < _MOST_NAMES:
            self._names.add(connection.name)
        yield from self._requests(connection)

    def _greet(self, connection: Connection, head: bytes) -> Generator[int, bytes, bool]:
        magic, connection.name, job, _ = GREETING.unpack(head)
        if magic != MAGIC:
            self._garbage += 1
            text = f"the store at port {self.port} dropped {self._garbage} connections of foreign "
            self._warn(self._garbage, f"{text}programs, the last from {connection.address()}")
            return False
        greeting = yield SEAL_BYTES
        theirs = _text(job)
        if theirs != self._job:
            what = "of another job"
            why = (
                f"it serves {self._job or 'a job of no launcher'}, and this rank is of "
                f"{theirs or 'a job of no launcher'}: both have port {self.port}; give one job "
                "its own MASTER_ADDR and MASTER_PORT"
            )
        elif not hmac.compare_digest(greeting, seal(self._key, b"greeting", head)):
            what = "that could not prove its job key"
            why = (
                f"its job key differs from that of process {os.getpid()} on "
                f"{socket.gethostname()}, which serves the store; {SAME_KEY}"
            )
        else:
            return True
        self._refusals += 1
        who = f"at {connection.address()}, by its own words {_text(connection.name)!r}"
        self._refused = (
            f"; the store refused {self._refusals} clients, the last one {what}: {who}; {SAME_KEY}"
        )
        self._warn(self._refusals, self._refused[2:])
        connection.answer(REFUSED, why.encode())
        return False

    @staticmethod
    def _warn(times: int, text: str) -> None:
        """The first ones are logged, and then ever fewer."""
        if times <= 4 or times.bit_count() == 1:
            logging.getLogger("hetcomm").warning("hetcomm: %s", text)

    def _requests(self, connection: Connection) -> Conversation:
        while True:
            operation, key_length, length, bound = REQUEST.unpack((yield REQUEST.size))
            if (
                operation not in _LONGEST_VALUE
                or key_length > LONGEST_KEY
                or length > _LONGEST_VALUE[operation]
                or not bound >= 0  # or no number
            ):
                return
            if operation == SET:
                yield from self._take(connection, key_length, length)
                continue
            key = yield key_length
            if operation == WILL:
                value = yield length
                connection.will = (key, value) if value else None
                connection.answer(FOUND, b"")
            elif operation == DELETE:  # without an answer
                self._values.forget(key)
            elif (found := self._values.get(key)) is not None:
                connection.answer(FOUND, found)
            else:
                self._values.await_key(key, connection, time.monotonic() + min(bound, 1e6))
                yield None

    def _take(self, connection: Connection, key_length: int, length: int) -> Conversation:
        cost = cost_of(key_length, length)
        if why := self._values.why_full(cost):
            left = key_length + length
            while left > 0:
                left -= len((yield min(left, PIECE)))
            connection.answer(REFUSED, why.encode())
            return
        self._values.held += cost
        try:
            key = yield key_length
            value = yield length
        finally:
            self._values.held -= cost
        self._values.put(key, value)
        connection.answer(FOUND, b"")


def _listen(port: int) -> socket.socket:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # takes IPv4 as well
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("", port))
        found.listen(1 << 16)  # the kernel has a lower limit
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise _core.TransportError(
            f"a store cannot be served at port {port}: {error}; choose another MASTER_PORT"
        ) from error
    return found


def _text(field: bytes) -> str:
    return printable(field.rstrip(b"\0").decode(errors="replace"))


def _wait(until: Callable[[], bool], bound: float) -> None:
    deadline = time.monotonic() + bound
    while not until() and time.monotonic() < deadline:
        time.sleep(_PAUSE)
