"""Stores that fail during set-up. The error names the store at once, and blames no rank."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from ranks_of_arrays import BOUND

import hetcomm
from hetcomm import _core, rendezvous

# Serves a store, in a process that may have few descriptors. Ends with its input.
SERVER = """
import resource, sys
from hetcomm import TcpStoreServer
print(TcpStoreServer().port, flush=True)
most = int(sys.argv[1])
if most:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
sys.stdin.read()
"""

TORCH_SERVER = """
import sys
from torch.distributed import TCPStore
server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(server.port, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def served(
    descriptors: int = 0, program: str = SERVER
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """The port of a store that a separate process serves, and that process."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program, str(descriptors)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def failing_set_up(
    store: _core.Store, another: _core.Store, fail: Callable[[], None]
) -> hetcomm.Error:
    """The error of rank 0 of 2 when the store fails while rank 0 waits for rank 1. `another` client
    of the store tells when rank 0 waits."""
    found: list[Any] = []

    def join() -> None:
        try:
            found.append(hetcomm.Communicator(store, 0, 2, name="lone"))
        except Exception as error:
            found.append(error)

    joining = threading.Thread(target=join, daemon=True)
    joining.start()
    another.get("member/0", timedelta(seconds=BOUND))  # rank 0 has come
    fail()
    joining.join(BOUND)
    assert found and isinstance(found[0], hetcomm.Error), found
    return found[0]


def assert_blames_the_store(error: hetcomm.Error) -> None:
    assert type(error) is hetcomm.TransportError, repr(error)
    assert "did not come" not in str(error) and "within" not in str(error), error
    assert 'could not join group "lone"' in str(error) and "store" in str(error), error


def test_a_dying_store_is_an_error() -> None:
    with served() as (port, process):
        store = hetcomm.TcpStore("127.0.0.1", port, timeout=1800)
        error = failing_set_up(store, hetcomm.TcpStore("127.0.0.1", port), process.kill)
    assert_blames_the_store(error)
    assert "see whether rank 0 still runs" in str(error)


def test_a_dying_torch_store_is_an_error() -> None:
    torch = pytest.importorskip("torch")
    masters = [torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)]
    store, another = (
        rendezvous.TorchStore(torch.distributed.TCPStore("127.0.0.1", masters[0].port))
        for _ in range(2)
    )
    assert_blames_the_store(failing_set_up(store, another, masters.clear))


def test_a_stopped_torch_store_does_not_hang() -> None:
    """check() of torch's store then ignores the store's own timeout."""
    torch = pytest.importorskip("torch")
    with served(program=TORCH_SERVER) as (port, process):
        store = rendezvous.TorchStore(torch.distributed.TCPStore("127.0.0.1", port))
        store.set("key", b"value")
        assert store.get("key", timedelta(seconds=BOUND)) == b"value"
        with pytest.raises(hetcomm.TimeoutError, match="no rank has set it"):
            store.get("another", timedelta(seconds=0.2))
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # until then a thread may still answer
        for _ in range(2):
            with pytest.raises(hetcomm.TimeoutError, match="the store does not answer"):
                store.get("key", timedelta(seconds=0.2))
        with pytest.raises(hetcomm.TimeoutError, match="the store does not answer"):
            store.set("key", b"")
        process.send_signal(signal.SIGCONT)
        assert store.get("key", timedelta(seconds=BOUND)) == b"value"


def test_a_server_without_descriptors_refuses_with_a_reason() -> None:
    with served(descriptors=48) as (port, _), contextlib.ExitStack() as open_:
        first = hetcomm.TcpStore("127.0.0.1", port)
        first.set("key", b"value")
        with pytest.raises(hetcomm.TransportError, match="cannot take another connection") as error:
            for _ in range(48):
                store = hetcomm.TcpStore("127.0.0.1", port)
                assert store.get("key", timedelta(seconds=BOUND)) == b"value"
                open_.callback(store.set, "other", b"")
        assert "Too many open files; raise its descriptor limit" in str(error.value)
        assert first.get("key", timedelta(seconds=BOUND)) == b"value"  # earlier clients are served


def test_a_server_without_descriptors_does_not_spin() -> None:
    with served(descriptors=48) as (port, process), contextlib.ExitStack() as open_:
        for _ in range(64):
            open_.enter_context(socket.create_connection(("127.0.0.1", port), BOUND))
        before, begin = cpu_seconds(process.pid), time.monotonic()
        while (seconds := time.monotonic() - begin) < 4:
            time.sleep(0.1)
        assert cpu_seconds(process.pid) - before < 0.1 * seconds


def cpu_seconds(process: int) -> float:
    """The processor time of the process so far."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (12.3e-6, "12.3 us"), (0.99996e-3, "1 ms"), (0.141, "141 ms"), (0.9999, "1 s"),
        (1.5, "1.5 s"), (60, "60 s"), (999.7, "1000 s"), (1234.5, "1234 s"), (600, "10 min"),
        (1800, "30 min"), (1801, "1801 s"), (7200, "2 h"), (86_400, "24 h"), (1e9, "1000000000 s"),
    ],
)  # fmt: skip
def test_times_are_written_without_exponents(seconds: float, text: str) -> None:
    assert _core.format_seconds(seconds) == text
