"""hetcomm's own store: proof of the job key, clients without it, and floods of strangers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from ranks_of_arrays import BOUND

import hetcomm
from hetcomm import store_protocol, store_server, store_values

RIGHT, WRONG = b"0123456789abcdef" * 4, b"fedcba9876543210" * 4


@pytest.fixture
def server() -> Iterator[hetcomm.TcpStoreServer]:
    with contextlib.closing(hetcomm.TcpStoreServer(job_key=RIGHT)) as found:
        yield found


def client(server: hetcomm.TcpStoreServer, key: bytes = RIGHT, name: str = "") -> hetcomm.TcpStore:
    return hetcomm.TcpStore("127.0.0.1", server.port, BOUND, name=name, job_key=key)


@pytest.mark.parametrize("key", [WRONG, b""], ids=["another", "none"])
def test_a_client_with_another_key_is_refused_at_once(
    server: hetcomm.TcpStoreServer, key: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    begin = time.monotonic()
    with pytest.raises(hetcomm.TransportError, match="its job key differs from that of process"):
        client(server, key, "rank 2")
    assert time.monotonic() - begin < BOUND / 2
    name = f"rank 2, process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(TimeoutError, match=f"'{name}'") as waiting:
        client(server).get("member/2", timedelta(seconds=0.1))
    assert "could not prove its job key" in str(waiting.value)
    assert "HETCOMM_JOB_KEY_FILE" in str(waiting.value)
    assert name in caplog.text


def test_a_server_without_the_key_is_refused() -> None:
    with (
        contextlib.closing(hetcomm.TcpStoreServer(job_key=b"")) as server,
        pytest.raises(hetcomm.TransportError, match="its job key differs"),
    ):
        client(server)


def test_a_program_in_the_place_of_the_server_is_refused() -> None:
    """It takes every proof, and cannot give its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connection = listener.accept()[0]
            with connection:
                connection.recv(store_protocol.GREETING.size + 32, socket.MSG_WAITALL)
                connection.sendall(struct.pack("!cI", b"+", 64) + os.urandom(64))
                connection.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        try:
            with pytest.raises(hetcomm.TransportError, match="cannot prove the job key"):
                hetcomm.TcpStore("127.0.0.1", listener.getsockname()[1], BOUND, job_key=RIGHT)
        finally:
            thread.join(BOUND)


def test_requests_before_a_proof_are_not_read(server: hetcomm.TcpStoreServer) -> None:
    request = struct.pack("!cIId", b"s", 3, 5, 60.0) + b"keyvalue"
    with socket.create_connection(("127.0.0.1", server.port), BOUND) as stranger:
        stranger.sendall(request * 10)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    with pytest.raises(TimeoutError):
        client(server).get("key", timedelta(seconds=0.05))


def sockets_and_threads() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(list(Path("/proc/self/task").iterdir()))


def test_a_thousand_strangers_and_garbage_disturb_no_rank(
    server: hetcomm.TcpStoreServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_server, "MOST_STRANGERS", 64)
    store = client(server)
    with contextlib.ExitStack() as open_:
        before = sockets_and_threads()
        for number in range(1000):
            with contextlib.suppress(OSError):
                stranger = socket.create_connection(("127.0.0.1", server.port), BOUND)
                open_.enter_context(stranger)
                if number % 2:
                    stranger.sendall(os.urandom(192 + number))
        for number in range(50):
            store.set(f"key {number}", b"value")
            assert store.get(f"key {number}", timedelta(seconds=BOUND)) == b"value"
        mine = sockets_and_threads()
        # 1000 sockets are this test's own; the server has 64.
        assert mine[0] < before[0] + 1000 + 70 and mine[1] == before[1], (before, mine)
        late = client(server, name="late")  # a rank that comes meanwhile has its turn
        late.set("late", b"x")
        assert store.get("late", timedelta(seconds=BOUND)) == b"x"
    assert caplog.text.count("foreign programs") < 40


def test_all_values_together_have_a_bound(
    server: hetcomm.TcpStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_values, "MOST_HELD", 1 << 20)
    store = client(server)
    store.set("first", bytes(600_000))
    store.set("first", bytes(300_000))  # takes the place of the other
    with pytest.raises(hetcomm.TransportError, match="at most 1048576 bytes, and this value takes"):
        store.set("second", bytes(900_000))
    store = client(server)
    store.delete_key("first")
    store.set("second", bytes(900_000))
    assert store.get("second", timedelta(seconds=BOUND)) == bytes(900_000)
    with pytest.raises(TimeoutError):
        store.get("first", timedelta(seconds=0.05))


def test_many_small_values_have_a_bound(
    server: hetcomm.TcpStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_values, "MOST_HELD", 100_000)
    store = client(server)
    with pytest.raises(hetcomm.TransportError, match="delete keys"):
        for number in range(1000):
            store.set(f"{number}", b"")
    assert number > 100


def test_a_client_of_another_job_is_refused(server: hetcomm.TcpStoreServer) -> None:
    """It names both jobs, also where both have the same key."""
    with (
        contextlib.closing(hetcomm.TcpStoreServer(job_key=RIGHT, job="job 1, step 0")) as own,
        pytest.raises(hetcomm.TransportError, match=r"job 1, step 0, and .* job 626, step 0"),
    ):
        hetcomm.TcpStore("127.0.0.1", own.port, BOUND, job_key=RIGHT, job="job 626, step 0")


def test_the_will_of_a_client_that_ends_is_set(server: hetcomm.TcpStoreServer) -> None:
    store, kept, withdrawn = client(server), client(server), client(server)
    kept.leave_will("kept", b"gone")
    withdrawn.leave_will("withdrawn", b"gone")
    withdrawn.withdraw_will("withdrawn")
    with pytest.raises(TimeoutError):
        store.get("kept", timedelta(seconds=0.05))
    kept._wills["kept"].pop().close()
    assert store.get("kept", timedelta(seconds=BOUND)) == b"gone"
    with pytest.raises(TimeoutError):
        store.get("withdrawn", timedelta(seconds=0.05))


def test_values_and_keys_have_bounds(server: hetcomm.TcpStoreServer) -> None:
    store = client(server)
    with pytest.raises(hetcomm.InvalidArgumentError, match="expected a value of at most"):
        store.set("large", bytes((64 << 20) + 1))
    with pytest.raises(hetcomm.TransportError):
        store.set("k" * 70_000, b"x")
    store.set("key", b"x")
    assert store.get("key", timedelta(seconds=BOUND)) == b"x"
