"""Floods of strangers at the port of hetcomm's own store delay no rank."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from flood import flooding
from ranks_of_arrays import BOUND

import hetcomm

KEY = b"0123456789abcdef" * 4
RATE = 1000  # connections a second
DELAY = 1.5  # seconds; a rank alone takes a few milliseconds
SERVER = """
import resource, sys
import hetcomm
if int(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
print(hetcomm.TcpStoreServer(job_key=sys.argv[2].encode()).port, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def served(descriptors: int = 0, key: bytes = KEY) -> Iterator[tuple[int, int]]:
    """The port of a store in a process of its own, and that process."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", SERVER, str(descriptors), key.decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("descriptors", [0, 1024], ids=["many-descriptors", "few-descriptors"])
def test_a_flood_delays_no_rank(descriptors: int) -> None:
    with served(descriptors) as (port, process), flooding(RATE, BOUND, port):
        for number in range(5):
            begin = time.monotonic()
            store = hetcomm.TcpStore("127.0.0.1", port, BOUND, name=f"{number}", job_key=KEY)
            store.set(f"key {number}", b"value")
            assert store.get("key 0", timedelta(seconds=BOUND)) == b"value"
            assert time.monotonic() - begin < DELAY
        assert len(list(Path(f"/proc/{process}/task").iterdir())) < 8, "threads of strangers"


def test_clients_without_a_request_take_no_threads() -> None:
    """Also without a job key."""
    with served(key=b"") as (port, process):
        stores = [hetcomm.TcpStore("127.0.0.1", port, BOUND, job_key=b"") for _ in range(50)]
        stores[0].set("key", b"")
        assert len(list(Path(f"/proc/{process}/task").iterdir())) < 8


def test_a_copied_greeting_proves_nothing() -> None:
    """It gets a challenge, which its sender cannot answer, and no request is read."""
    recorded = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with contextlib.suppress(hetcomm.TimeoutError):
            hetcomm.TcpStore("127.0.0.1", port, 0.2, job_key=KEY)
        with listener.accept()[0] as connection:
            connection.settimeout(BOUND)
            recorded.append(connection.recv(4096))
    assert len(recorded[0]) > 100, "the client speaks first"
    with contextlib.closing(hetcomm.TcpStoreServer(job_key=KEY)) as server:
        with socket.create_connection(("127.0.0.1", server.port), BOUND) as copy:
            copy.sendall(recorded[0])
            assert copy.recv(5 + 64, socket.MSG_WAITALL)[:1] == b"+"
            copy.sendall(os.urandom(32) + b"s" * 100)
            with contextlib.suppress(ConnectionError):
                assert copy.recv(4096) == b""
        assert server.processes() == 0
