"""A key-value store over TCP for rendezvous without torch. One rank serves it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import socketserver
import struct
import threading
import time
from datetime import timedelta
from typing import Any

from hetcomm import _core

# A request: operation, lengths of key and value, bound in seconds, key, value. An answer: sign,
# length, value.
_REQUEST, _ANSWER = struct.Struct("!cIId"), struct.Struct("!cI")
_SET, _GET, _FOUND, _EXPIRED, _REFUSED = b"s", b"g", b"+", b"-", b"!"
_LONGEST = 64 << 20  # bytes of a value; only foreign programs send more
_RETRY = 0.05  # seconds between attempts to connect
_RECONNECT = 2.0  # seconds for a new connection to the same server


class TcpStore(_core.Store):
    """The store at an address, or at the first of several that answers."""

    def __init__(self, addresses: str | list[str], port: int, timeout: float = 60.0) -> None:
        """Connects; waits for the server to start.

        Raises:
            TransportError: none answered within `timeout` seconds.
        """
        super().__init__()
        self.addresses = [addresses] if isinstance(addresses, str) else addresses
        self.port, self.timeout = port, timeout
        self._per_thread = threading.local()  # a connection per thread, since get() may take long
        self._per_thread.connection = self._connect(timeout)

    def _connect(self, bound: float) -> socket.socket:
        why: list[str] = []
        deadline = time.monotonic() + bound
        while True:
            left = max(deadline - time.monotonic(), _RETRY)
            why.clear()
            for address in self.addresses:
                try:
                    found = socket.create_connection((address, self.port), min(left, 2.0))
                except OSError as error:
                    why.append(f"{address}: {error}")
                    continue
                # Without a listener the kernel may connect a port to itself.
                if found.getsockname() == found.getpeername():
                    found.close()
                    why.append(f"{address}: no process listens")
                    continue
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return found
            if time.monotonic() > deadline:
                raise _core.TransportError(
                    f"found no store at {' or '.join(self.addresses)}:{self.port} within "
                    f"{_core.format_seconds(bound)}; check the address and port (MASTER_ADDR, "
                    "MASTER_PORT), that rank 0 runs, and that no firewall is in between "
                    f"({'; '.join(why)})"
                )
            time.sleep(_RETRY)

    def set(self, key: str, value: bytes) -> None:
        self._request(_SET, key, value, 60.0)

    def get(self, key: str, timeout: timedelta) -> bytes:
        """Waits for the key; raises hetcomm.TimeoutError."""
        bound = timeout.total_seconds()
        sign, value = self._request(_GET, key, b"", bound)
        if sign == _EXPIRED:
            raise _core.TimeoutError(f"no rank has set {key} within {_core.format_seconds(bound)}")
        return value

    def _request(
        self, operation: bytes, key: str, value: bytes, bound: float
    ) -> tuple[bytes, bytes]:
        name = key.encode()
        connection = getattr(self._per_thread, "connection", None) or self._connect(
            min(self.timeout, _RECONNECT)
        )
        self._per_thread.connection = None  # after an error it may bring the answer of this request
        connection.settimeout(min(bound + 10.0, 1e9))
        request = _REQUEST.pack(operation, len(name), len(value), bound) + name + value
        try:
            with contextlib.suppress(ConnectionError):  # the server may have sent a refusal
                connection.sendall(request)
            sign, length = _ANSWER.unpack(_receive(connection, _ANSWER.size))
            answer = _receive(connection, length)
        except OSError as error:
            connection.close()
            raise _core.TransportError(
                f"the store at port {self.port} is out of reach: {error}; see whether rank 0 "
                "still runs"
            ) from error
        except BaseException:
            connection.close()
            raise
        if sign == _REFUSED:
            connection.close()
            raise _core.TransportError(
                f"the store at port {self.port} refused this rank: {answer.decode()}"
            )
        self._per_thread.connection = connection
        return sign, answer


class TcpStoreServer:
    """Serves a store until it is closed or the process ends."""

    def __init__(self, port: int = 0) -> None:
        """Listens on `port`, any free one if 0, of all addresses of this host.

        Raises:
            TransportError: the port is taken.
        """
        try:
            self._server = _Server(("", port), _Handler)
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
        for connection in list(self._server.connections):
            with contextlib.suppress(OSError):  # closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def wait_until_left(self, others: int, bound: float) -> None:
        """Waits until at most `others` connections are open, for at most `bound` seconds."""
        deadline = time.monotonic() + bound
        while len(self._server.connections) > others and time.monotonic() < deadline:
            time.sleep(_RETRY)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    _spare = -1  # a descriptor to refuse a connection with when no other is free
    allow_reuse_address = True
    request_queue_size = 1024
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
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

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse(error)
            time.sleep(_RETRY)  # the next attempt may fail at once too
            raise

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

    def handle(self) -> None:
        connection = self.request
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.connections.add(connection)
        with contextlib.suppress(OSError):
            while True:
                operation, key_length, length, bound = _REQUEST.unpack(
                    _receive(connection, _REQUEST.size)
                )
                if operation not in (_SET, _GET) or max(key_length, length) > _LONGEST:
                    return  # a foreign program
                key = _receive(connection, key_length)
                value = _receive(connection, length)
                sign, answer = self.put(key, value) if operation == _SET else self.find(key, bound)
                connection.sendall(_ANSWER.pack(sign, len(answer)) + answer)

    def finish(self) -> None:
        self.server.connections.discard(self.request)

    def put(self, key: bytes, value: bytes) -> tuple[bytes, bytes]:
        with self.server.changed:
            self.server.values[key] = value
            self.server.changed.notify_all()
        return _FOUND, b""

    def find(self, key: bytes, bound: float) -> tuple[bytes, bytes]:
        values = self.server.values
        with self.server.changed:
            if not self.server.changed.wait_for(lambda: key in values, min(bound, 1e6)):
                return _EXPIRED, b""
            return _FOUND, values[key]


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
