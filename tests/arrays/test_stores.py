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
            with pytest.raises(hetcomm.TimeoutError, match=r"store at .* does not answer"):
                store.get("key", timedelta(seconds=0.2))
        with pytest.raises(hetcomm.TimeoutError, match=r"store at .* does not answer"):
            store.set("key", b"")
        process.send_signal(signal.SIGCONT)
        assert store.get("key", timedelta(seconds=BOUND)) == b"value"


class StuckStore(_core.Store):
    """A user's own store, whose server stands still."""

    def set(self, key: str, value: bytes) -> None:
        time.sleep(BOUND)

    def get(self, key: str, timeout: timedelta) -> bytes:
        raise AssertionError("nothing was set")


def torch_group(store: Any, timeout: float) -> Any:
    """A group of torch's own, by hand."""
    from hetcomm.backend import ProcessGroupHetcomm

    return ProcessGroupHetcomm(store, 0, 2, timedelta(seconds=timeout))


def lone(store: Any, timeout: float) -> Any:
    """Rank 0 of 2."""
    return hetcomm.Communicator.from_store(store, 0, 2, timeout=timeout)


@pytest.mark.parametrize("when", ["before", "amid"])
@pytest.mark.parametrize("kind", ["tcp", "torch", "torch group", "own"])
def test_a_stopped_store_ends_set_up_in_time(kind: str, when: str) -> None:
    """A call lasts its timeout plus 5 s at most, and the error names the store."""
    program = SERVER if kind == "tcp" else TORCH_SERVER
    with served(program=program) as (port, process):
        store, named = StuckStore(), "the store does not answer"
        if kind == "tcp":
            store = hetcomm.TcpStore("127.0.0.1", port, timeout=60.0)
        elif kind.startswith("torch"):
            torch = pytest.importorskip("torch")
            store = torch.distributed.TCPStore("127.0.0.1", port)
            # torch's threads that wait for the server outlive the test.
        if kind != "own":
            named = f"store at 127.0.0.1:{port} does not answer"
        stopping = threading.Timer(
            0.0 if when == "before" else 1.0, process.send_signal, (signal.SIGSTOP,)
        )
        stopping.start()
        if when == "before":
            stopping.join()
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        begin = time.monotonic()
        with pytest.raises(hetcomm.TimeoutError) as error:
            (torch_group if kind == "torch group" else lone)(store, 3.0)
        assert time.monotonic() - begin < 3.0 + 5.0
        stopping.join()
        assert named in str(error.value), error.value
        assert "did not come" not in str(error.value), error.value


def test_a_stopped_store_ends_calls_of_commands_in_time() -> None:
    """Commands such as doctor and topo call the store themselves."""
    with served() as (port, process):
        store = hetcomm.TcpStore("127.0.0.1", port, timeout=2.0)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        for call in (
            lambda: store.set("key", b"value"),
            lambda: store.get("key", timedelta(seconds=2.0)),
            lambda: hetcomm.TcpStore("127.0.0.1", port, timeout=2.0),
        ):
            begin = time.monotonic()
            with pytest.raises(hetcomm.TimeoutError, match=f"the store at 127.0.0.1:{port}"):
                call()
            assert time.monotonic() - begin < 2.0 + 5.0


# Joins a group as rank 1, and dies before it publishes anything.
DYING = """
import os, signal, sys
import hetcomm
class Dying(hetcomm.TcpStore):
    def set(self, key, value):
        os.kill(os.getpid(), signal.SIGKILL)
hetcomm.Communicator(Dying("127.0.0.1", int(sys.argv[1])), 1, 2, name="lone")
"""


def test_a_client_of_our_store_that_dies_before_it_joins_is_named() -> None:
    with served() as (port, _):
        dying = subprocess.Popen([sys.executable, "-P", "-c", DYING, str(port)])
        store, begin = hetcomm.TcpStore("127.0.0.1", port), time.monotonic()
        with pytest.raises(hetcomm.PeerFailedError, match=r"rank 1 .*its process ended") as error:
            hetcomm.Communicator(store, 0, 2, name="lone", timeout=60.0)
        assert error.value.peer == 1 and time.monotonic() - begin < 20
        dying.wait()


def test_a_will_ends_with_its_client() -> None:
    with served() as (port, _):
        reader = hetcomm.TcpStore("127.0.0.1", port)
        for withdrawn in (True, False):
            code = f"""
import hetcomm, os
store = hetcomm.TcpStore("127.0.0.1", {port})
store.leave_will("will {withdrawn}", b"value")
if {withdrawn}: store.withdraw_will("will {withdrawn}")
os._exit(0)
"""
            subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=BOUND)
        assert reader.get("will False", timedelta(seconds=BOUND)) == b"value"
        with pytest.raises(hetcomm.TimeoutError):
            reader.get("will True", timedelta(seconds=0.5))


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
