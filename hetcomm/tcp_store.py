"""A key-value store over TCP for rendezvous without torch. One rank serves it."""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hetcomm import _core
from hetcomm.bounded_call import SilentStoreError

# A request: operation, lengths of key and value, bound in seconds, key, value. An answer: sign,
# length, value.
_REQUEST, _ANSWER = struct.Struct("!cIId"), struct.Struct("!cI")
_SET, _GET, _FOUND, _EXPIRED, _REFUSED = b"s", b"g", b"+", b"-", b"!"
_WILL = b"w"  # a key to set if the connection ends before a will without a value
_LONGEST_KEY, _LONGEST = 64 << 10, 64 << 20  # bytes of a key, of a value
# First both ends prove the job key. The server sends a challenge. The client sends its name, its
# challenge and its proof. The server answers with its own proof.
_CHALLENGE_BYTES = 32
_PROOF = struct.Struct("!128s32s32s")
_PROOF_SECONDS = 10.0  # for a client to prove the key, and for the server to answer
_MOST_STRANGERS = 64  # clients that have not proven the key
_STRANGER_SECONDS = 1.0  # of this age a stranger makes way for a newer client
_SAME_KEY = "give every rank of the job the same HETCOMM_JOB_KEY_FILE"
_RETRY = 0.05  # seconds between attempts to connect
_RECONNECT = 2.0  # seconds for a new connection to the same server
_ANSWER_SECONDS = 2.0  # for an answer, beyond the time of its request


class TcpStore(_core.Store):
    """The store at an address, or at the first of several that answers.

    Client and server prove the job key to each other, which may be empty.
    """

    def __init__(
        self,
        addresses: str | list[str],
        port: int,
        timeout: float = 60.0,
        *,
        name: str = "",
        job_key: bytes | None = None,
    ) -> None:
        """Connects; waits for the server to start.

        name: of this client, for messages of the server. job_key: HETCOMM_JOB_KEY_FILE's if None.

        timeout: seconds to connect, and to write a value.

        Raises:
            TransportError: no store is there within `timeout` seconds, or its job key differs.
            TimeoutError: the process there does not answer.
        """
        super().__init__()
        self.addresses = [addresses] if isinstance(addresses, str) else addresses
        self.port, self.timeout = port, timeout
        own = f"process {os.getpid()} on {socket.gethostname()}"
        self._name = f"{name}, {own}" if name else own
        self._key = bytes(_core.job_key()) if job_key is None else job_key
        # Connections without a request. Each request takes one, since get() may take long.
        self._idle = [self._connect(timeout)]
        self._wills: dict[str, socket.socket] = {}  # a connection each

    def _connect(self, bound: float) -> socket.socket:
        why: list[str] = []
        deadline = time.monotonic() + bound
        while True:
            why.clear()
            silent = False
            for address in self.addresses:
                left = max(deadline - time.monotonic(), _RETRY)
                try:
                    found = socket.create_connection((address, self.port), min(left, 2.0))
                except OSError as error:
                    silent |= isinstance(error, TimeoutError)
                    why.append(f"{address}: {error}")
                    continue
                # Without a listener the kernel may connect a port to itself.
                if found.getsockname() == found.getpeername():
                    found.close()
                    why.append(f"{address}: no process listens")
                    continue
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                left = max(deadline - time.monotonic(), _RETRY)
                found.settimeout(min(left, _PROOF_SECONDS))
                try:
                    self._prove(found)
                except OSError as error:
                    silent |= isinstance(error, TimeoutError)
                    found.close()
                    why.append(f"{address}: {error}")
                    continue
                except BaseException:
                    found.close()
                    raise
                return found
            if time.monotonic() > deadline:
                if silent:
                    raise SilentStoreError(self.place())
                raise _core.TransportError(
                    f"found no store at {' or '.join(self.addresses)}:{self.port} within "
                    f"{_core.format_seconds(bound)}; check the address and port (MASTER_ADDR, "
                    "MASTER_PORT), that rank 0 runs, and that no firewall is in between "
                    f"({'; '.join(why)})"
                )
            time.sleep(_RETRY)

    def _prove(self, connection: socket.socket) -> None:
        theirs = self._answer(connection, _CHALLENGE_BYTES)[1]
        mine = os.urandom(_CHALLENGE_BYTES)
        challenges = theirs + mine
        proof = _proof(self._key, b"client", challenges)
        connection.sendall(_PROOF.pack(self._name.encode()[:128], mine, proof))
        if not hmac.compare_digest(
            self._answer(connection, _CHALLENGE_BYTES)[1], _proof(self._key, b"server", challenges)
        ):
            raise _core.TransportError(
                f"the process at port {self.port} cannot prove the job key; see who listens there, "
                f"and {_SAME_KEY}"
            )

    def _answer(self, connection: socket.socket, longest: int) -> tuple[bytes, bytes]:
        sign, length = _ANSWER.unpack(_receive(connection, _ANSWER.size))
        if sign not in (_FOUND, _EXPIRED, _REFUSED):
            raise ConnectionError("expected a store of hetcomm, got another program")
        if sign != _FOUND:
            longest = _LONGEST_KEY  # of a text
        if length > longest:
            raise ConnectionError(f"expected an answer of at most {longest} bytes, got {length}")
        answer = _receive(connection, length)
        if sign == _REFUSED:
            why = answer.decode(errors="replace")
            raise _core.TransportError(f"the store at port {self.port} refused this rank: {why}")
        return sign, answer

    def set(self, key: str, value: bytes) -> None:
        if len(value) > _LONGEST:
            raise _core.InvalidArgumentError(
                f"{key}: expected a value of at most {_LONGEST} bytes, got {len(value)}"
            )
        self._request(_SET, key, value, self.timeout)

    def get(self, key: str, timeout: timedelta) -> bytes:
        """Waits for the key; raises hetcomm.TimeoutError."""
        bound = timeout.total_seconds()
        sign, value = self._request(_GET, key, b"", bound)
        if sign == _EXPIRED:
            refused = value.decode(errors="replace")
            raise _core.TimeoutError(f"no rank has set {key} in time{refused}")
        return value

    def leave_will(self, key: str, value: bytes) -> None:
        """Has the server set the key, unless it is set, if this process ends before
        withdraw_will()."""
        self._wills[key] = connection = self._connect(self.timeout)
        self._exchange(connection, _WILL, key, value, self.timeout)

    def withdraw_will(self, key: str) -> None:
        if connection := self._wills.pop(key, None):
            self._exchange(connection, _WILL, key, b"", self.timeout)
            connection.close()

    def place(self) -> str:
        return f"the store at {' or '.join(self.addresses)}:{self.port}"

    def _request(
        self, operation: bytes, key: str, value: bytes, bound: float
    ) -> tuple[bytes, bytes]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect(min(self.timeout, _RECONNECT))
        # After an error the connection may bring the answer of this request.
        found = self._exchange(connection, operation, key, value, bound)
        self._idle.append(connection)
        return found

    def _exchange(
        self, connection: socket.socket, operation: bytes, key: str, value: bytes, bound: float
    ) -> tuple[bytes, bytes]:
        name = key.encode()
        connection.settimeout(min(bound + _ANSWER_SECONDS, 1e9))
        request = _REQUEST.pack(operation, len(name), len(value), bound) + name + value
        try:
            with contextlib.suppress(ConnectionError):  # the server may have sent a refusal
                connection.sendall(request)
            return self._answer(connection, _LONGEST)
        except TimeoutError as error:
            connection.close()
            raise SilentStoreError(self.place()) from error
        except OSError as error:
            connection.close()
            raise _core.TransportError(
                f"the store at port {self.port} is out of reach: {error}; see whether rank 0 "
                "still runs"
            ) from error
        except BaseException:
            connection.close()
            raise


class TcpStoreServer:
    """Serves a store until it is closed or the process ends."""

    def __init__(self, port: int = 0, *, job_key: bytes | None = None) -> None:
        """Listens on `port`, any free one if 0, of all addresses of this host.

        job_key: HETCOMM_JOB_KEY_FILE's if None.

        Raises:
            TransportError: the port is taken.
        """
        try:
            key = bytes(_core.job_key()) if job_key is None else job_key
            self._server = _Server(("", port), _Handler, key)
        except OSError as error:
            raise _core.TransportError(
                f"a store cannot be served at port {port}: {error}; choose another MASTER_PORT"
            ) from error
        self.port: int = self._server.server_address[1]
        serve = threading.Thread(target=self._server.serve_forever, name="store", daemon=True)
        serve.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for connection in [*self._server.connections, *self._server.strangers]:
            with contextlib.suppress(OSError):  # closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def wait_until_left(self, others: int, bound: float) -> None:
        """Waits until at most `others` connections are open, for at most `bound` seconds."""
        _wait(lambda: len(self._server.connections) <= others, bound)

    def processes(self) -> int:
        """The number of processes that have come so far."""
        return len(self._server.names)

    def wait_until_came(self, processes: int, bound: float) -> None:
        """Waits until so many processes have come, for at most `bound` seconds."""
        _wait(lambda: self.processes() >= processes, bound)


def _wait(until: Callable[[], bool], bound: float) -> None:
    deadline = time.monotonic() + bound
    while not until() and time.monotonic() < deadline:
        time.sleep(_RETRY)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    _spare = -1  # a descriptor to refuse a connection with when no other is free
    allow_reuse_address = True
    request_queue_size = 1024
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, address: tuple[str, int], handler: type[_Handler], key: bytes) -> None:
        self.key = key
        self.strangers: dict[socket.socket, float] = {}  # and when they came, oldest first
        self.refused = ""  # the last client with another job key
        self.refusals = 0
        super().__init__(address, handler, bind_and_activate=False)
        try:
            if self.address_family == socket.AF_INET6:  # takes IPv4 as well
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.server_bind()
            self.server_activate()
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            self.server_close()
            raise
        self.values: dict[bytes, bytes] = {}
        self.changed = threading.Condition()
        self.connections: set[socket.socket] = set()
        self.names: set[bytes] = set()  # of all processes so far that have proven the key

    def get_request(self) -> tuple[socket.socket, Any]:
        if len(self.strangers) >= _MOST_STRANGERS and not self._drop_oldest_stranger():
            time.sleep(_RETRY)
            raise BlockingIOError("as many strangers as the store permits")
        try:
            found = super().get_request()
            self.strangers[found[0]] = time.monotonic()
            return found
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse(error)
            time.sleep(_RETRY)  # the next attempt may fail at once too
            raise

    def _drop_oldest_stranger(self) -> bool:
        oldest, since = next(iter(list(self.strangers.items())), (None, 0.0))
        if oldest is None:
            return True
        if time.monotonic() - since < _STRANGER_SECONDS:
            return False
        self.strangers.pop(oldest, None)
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
        return True

    def note_refusal(self, who: str) -> str:
        """Who could not prove the job key. The first ones are logged, and then ever fewer."""
        self.refusals += 1
        self.refused = (
            f"; the store refused {self.refusals} clients that could not prove its job key, the "
            f"last {who}; {_SAME_KEY}"
        )
        if self.refusals <= 4 or self.refusals.bit_count() == 1:
            logging.getLogger("hetcomm").warning("hetcomm: %s", self.refused[2:])
        return (
            f"its job key differs from that of process {os.getpid()} on {socket.gethostname()}, "
            f"which serves the store; {_SAME_KEY}"
        )

    def _refuse(self, why: OSError) -> None:
        text = (
            f"the process that serves it, {os.getpid()} on {socket.gethostname()}, cannot take "
            f"another connection: {why.strerror}; raise its descriptor limit (ulimit -n)"
        ).encode()
        with contextlib.suppress(OSError):
            if self._spare >= 0:
                os.close(self._spare)
                self._spare = -1
            with super().get_request()[0] as connection:
                connection.sendall(_ANSWER.pack(_REFUSED, len(text)) + text)
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def server_close(self) -> None:
        super().server_close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


class _Handler(socketserver.BaseRequestHandler):
    server: _Server
    will: tuple[bytes, bytes] | None = None  # a key and its value, if the connection ends now

    def handle(self) -> None:
        connection = self.request
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            connection.settimeout(_PROOF_SECONDS)
            name = self.prove()
            if name is None:
                return
            connection.settimeout(None)
            self.server.connections.add(connection)
            self.server.names.add(name)
            self.server.strangers.pop(connection, None)
            while True:
                operation, key_length, length, bound = _REQUEST.unpack(
                    _receive(connection, _REQUEST.size)
                )
                if (
                    operation not in (_SET, _GET, _WILL)
                    or key_length > _LONGEST_KEY
                    or length > _LONGEST
                    or not bound >= 0  # or no number
                ):
                    return  # a foreign program
                key = _receive(connection, key_length)
                value = _receive(connection, length)
                if operation == _WILL:
                    self.will = (key, value) if value else None
                    sign, answer = _FOUND, b""
                else:
                    sign, answer = (
                        self.put(key, value) if operation == _SET else self.find(key, bound)
                    )
                self.answer(sign, answer)

    def prove(self) -> bytes | None:
        """The name of a client that proved the job key. It then has this end's proof, too."""
        mine = os.urandom(_CHALLENGE_BYTES)
        self.answer(_FOUND, mine)
        who, theirs, proof = _PROOF.unpack(_receive(self.request, _PROOF.size))
        challenges = mine + theirs
        if hmac.compare_digest(proof, _proof(self.server.key, b"client", challenges)):
            self.answer(_FOUND, _proof(self.server.key, b"server", challenges))
            return bytes(who)
        name = who.rstrip(b"\0").decode(errors="replace")
        address = self.client_address[0].removeprefix("::ffff:")
        shown = "".join(each if each.isprintable() else "?" for each in name)
        why = self.server.note_refusal(f"at {address}, by its own words {shown!r}")
        self.answer(_REFUSED, why.encode())
        return None

    def answer(self, sign: bytes, value: bytes) -> None:
        self.request.sendall(_ANSWER.pack(sign, len(value)) + value)

    def finish(self) -> None:
        if self.will and self.will[0] not in self.server.values:
            self.put(*self.will)
        self.server.connections.discard(self.request)
        self.server.strangers.pop(self.request, None)

    def put(self, key: bytes, value: bytes) -> tuple[bytes, bytes]:
        with self.server.changed:
            self.server.values[key] = value
            self.server.changed.notify_all()
        return _FOUND, b""

    def find(self, key: bytes, bound: float) -> tuple[bytes, bytes]:
        values = self.server.values
        with self.server.changed:
            if not self.server.changed.wait_for(lambda: key in values, min(bound, 1e6)):
                return _EXPIRED, self.server.refused.encode()
            return _FOUND, values[key]


def _proof(key: bytes, role: bytes, challenges: bytes) -> bytes:
    return hmac.digest(key, b"hetcomm store " + role + challenges, "sha256")


def _receive(connection: socket.socket, length: int) -> bytes:
    """Raises ConnectionError if the peer has closed."""
    parts = []
    while length > 0:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            raise ConnectionError("the store's server is gone")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
