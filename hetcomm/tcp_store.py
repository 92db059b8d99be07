"""A key-value store over TCP for rendezvous without torch. One rank serves it."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import time
from datetime import timedelta

from hetcomm import _core
from hetcomm.arguments import check_port, real_number
from hetcomm.bounded_call import StoreTimeoutError
from hetcomm.store_protocol import (
    ANSWER,
    CHALLENGE_BYTES,
    DELETE,
    EXPIRED,
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

_RETRY = 0.05  # seconds between attempts to connect
_RECONNECT = 2.0  # seconds for a new connection to the same server
_ANSWER_SECONDS = 2.0  # for an answer, beyond the time of its request
_DELETE_SECONDS = 1.0


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
        job: str = "",
    ) -> None:
        """Connects; waits for the server to start.

        name: of this client, for messages of the server. job_key: HETCOMM_JOB_KEY_FILE's if None.
        job: its name; a server of another job refuses this client.

        timeout: seconds to connect, and to write a value.

        Raises:
            TransportError: no store is there within `timeout` seconds, or its job or job key
                differs.
            TimeoutError: the process there does not answer.
        """
        super().__init__()
        timeout = _core.timeout(real_number("timeout", timeout))
        check_port(port)
        self.addresses = [addresses] if isinstance(addresses, str) else addresses
        self.port, self.timeout = port, timeout
        own = f"process {os.getpid()} on {socket.gethostname()}"
        self._name = f"{name}, {own}" if name else own
        self._job = job
        self._key = bytes(_core.job_key()) if job_key is None else job_key
        # Connections without a request. Each request takes one, since get() may take long.
        self._idle = [self._connect(timeout)]
        self._wills: dict[str, list[socket.socket]] = {}  # a connection each, by key

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
                try:
                    # Without a listener the kernel may connect a port to itself.
                    if found.getsockname() == found.getpeername():
                        raise ConnectionError("no process listens")
                    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    left = max(deadline - time.monotonic(), _RETRY)
                    found.settimeout(min(left, PROOF_SECONDS))
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
                    raise StoreTimeoutError(self.place())
                raise _core.TransportError(
                    f"found no store at {' or '.join(self.addresses)}:{self.port} within "
                    f"{_core.format_seconds(bound)}; check the address and port (MASTER_ADDR, "
                    "MASTER_PORT), that rank 0 runs, and that no firewall is in between "
                    f"({'; '.join(why)})"
                )
            time.sleep(_RETRY)

    def _prove(self, connection: socket.socket) -> None:
        mine = os.urandom(CHALLENGE_BYTES)
        head = GREETING.pack(MAGIC, self._name.encode(), self._job.encode(), mine)
        connection.sendall(head + seal(self._key, b"greeting", head))
        answer = self._answer(connection, CHALLENGE_BYTES + SEAL_BYTES)[1]
        words = head + answer[:CHALLENGE_BYTES]
        if not hmac.compare_digest(answer[CHALLENGE_BYTES:], seal(self._key, b"server", words)):
            raise _core.TransportError(
                f"the process at port {self.port} cannot prove the job key; see who listens there, "
                f"and {SAME_KEY}"
            )
        connection.sendall(seal(self._key, b"client", words))

    def _answer(self, connection: socket.socket, longest: int) -> tuple[bytes, bytes]:
        sign, length = ANSWER.unpack(_receive(connection, ANSWER.size))
        if sign not in (FOUND, EXPIRED, REFUSED):
            raise ConnectionError("expected a store of hetcomm, got another program")
        if sign != FOUND:
            longest = LONGEST_KEY  # of a text
        if length > longest:
            raise ConnectionError(f"expected an answer of at most {longest} bytes, got {length}")
        answer = _receive(connection, length)
        if sign == REFUSED:
            why = answer.decode(errors="replace")
            raise _core.TransportError(f"the store at port {self.port} refused this rank: {why}")
        return sign, answer

    def set(self, key: str, value: bytes) -> None:
        if len(value) > LONGEST:
            raise _core.InvalidArgumentError(
                f"{key}: expected a value of at most {LONGEST} bytes, got {len(value)}"
            )
        self._request(SET, key, value, self.timeout)

    def get(self, key: str, timeout: timedelta) -> bytes:
        """Waits for the key; raises hetcomm.TimeoutError."""
        bound = _core.timeout(timeout.total_seconds())
        sign, value = self._request(GET, key, b"", bound)
        if sign == EXPIRED:
            refused = value.decode(errors="replace")
            raise _core.TimeoutError(f"no rank has set {key} in time{refused}")
        return value

    def delete_key(self, key: str) -> None:
        """Asks the server to forget the key. Waits for no answer; without effect after an error."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return
        name = key.encode()
        connection.settimeout(_DELETE_SECONDS)
        try:
            connection.sendall(REQUEST.pack(DELETE, len(name), 0, 0.0) + name)
        except OSError:
            connection.close()
        else:
            self._idle.append(connection)

    def leave_will(self, key: str, value: bytes) -> None:
        """Has the server set the key, unless it is set, if this process ends before
        withdraw_will()."""
        connection = self._connect(self.timeout)
        self._exchange(connection, WILL, key, value, self.timeout)
        self._wills.setdefault(key, []).append(connection)  # threads of a process may be ranks

    def withdraw_will(self, key: str) -> None:
        if found := self._wills.get(key):
            connection = found.pop()
            self._exchange(connection, WILL, key, b"", self.timeout)
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
        request = REQUEST.pack(operation, len(name), len(value), bound) + name + value
        try:
            with contextlib.suppress(ConnectionError):  # the server may have sent a refusal
                connection.sendall(request)
            return self._answer(connection, LONGEST)
        except TimeoutError as error:
            connection.close()
            raise StoreTimeoutError(self.place()) from error
        except OSError as error:
            connection.close()
            raise _core.TransportError(
                f"the store at port {self.port} is out of reach: {error}; see whether rank 0 "
                "still runs"
            ) from error
        except BaseException:
            connection.close()
            raise


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
