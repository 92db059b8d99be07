"""Control connections: malformed and long records, peers that do not answer or do not read."""

from __future__ import annotations

import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from communicators import BOUND, Call, results_of, run_ranks
from control_peers import (
    ANSWER,
    CULPRIT,
    FIGURES,
    FIRST_CALL,
    GOODBYE,
    INQUIRY,
    REFUSAL,
    OpenStore,
    contact_of,
    introduced,
    news,
    packed,
    unresponsive_listener,
    with_contact,
)

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Spec

HEARTBEAT = 40  # bytes: a length and a digest
MALFORMED = {
    "unknown-kind": packed(17),
    "empty": b"",
    "cut": packed(REFUSAL, 3),
    "unknown-code": packed(REFUSAL, 3, 99, b"text"),
    "cut-figures": packed(FIGURES, b"all_reduce", 1, 2),
    "impossible-figures": packed(FIGURES, b"all_reduce", 1, 1 << 63, 0, 0, 0),
    "flooded-figures": packed(FIGURES, b"all_reduce", 1, 2, 2, 2, 2),
    "figures-told-twice": packed(FIGURES, b"all_reduce", 1, 2, 2, 2, 2),
    "cut-inquiry": packed(INQUIRY, 1),
    "inquiry-of-no-occasion": packed(INQUIRY, 1, 0, 3, 0),
    "culprit-of-no-rank": packed(CULPRIT, 1, 99, b"text"),
    "impossible-first-call": packed(FIRST_CALL, 1, 1 << 63),
    "first-call-that-no-rank-awaits": packed(FIRST_CALL, 1, 7),  # from the parent in the tree
    "answer-of-no-rank": packed(ANSWER, 0, 1, 99, 0, 1, b"text"),
    "answer-in-too-many-parts": packed(ANSWER, 0, 1, 1, 0, 1 << 40, b"text"),
    "more-than-there-should-be": packed(GOODBYE, 3, 0, b"", 4),
}
FIRST_TOLD = (1 << 63) + (1 << 40)  # a number of news that is not forwarded
TOLD = ("figures-told-twice", "first-call-that-no-rank-awaits")


def all_reduce(communicator: Communicator) -> None:
    Call(communicator, Spec(Collective.all_reduce, count=8), 0, True).check()


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_record_names_its_sender(what: str) -> None:
    shared: dict[str, bytes] = {}
    sent, ready = threading.Event(), threading.Barrier(4)
    sender, reader = (0, 1) if what == "first-call-that-no-rank-awaits" else (1, 0)

    def program(communicator: Communicator) -> str:
        all_reduce(communicator)
        ready.wait(BOUND)
        if communicator.rank == sender:
            with introduced(shared, reader, sender) as stand_in:
                first = FIRST_TOLD if what in TOLD else 1 << 40
                for number in range(2 if what == "figures-told-twice" else 1):
                    stand_in.send(news(sender, first + number, MALFORMED[what]))
                sent.set()
                stand_in.read_to_the_end()  # the reader closes the connection
        sent.wait(BOUND)
        with pytest.raises(_core.Error) as failed:
            for _ in range(1 << 40):
                all_reduce(communicator)
        assert failed.value.peer == sender, failed.value
        return str(failed.value)

    for text in results_of(run_ranks("abcd", program, store=lambda rank: OpenStore(shared, rank))):
        assert f"rank {sender} sent a malformed record" in text, text


def test_a_long_reason_arrives_shortened() -> None:
    ends = threading.Barrier(3)

    def program(communicator: Communicator) -> str:
        all_reduce(communicator)
        ends.wait(BOUND)
        if communicator.rank == 1:
            communicator.abort("begins " + "ä" * 100_000 + " ends")
        with pytest.raises(_core.AbortedError) as failed:
            for _ in range(1 << 40):
                all_reduce(communicator)
        assert failed.value.rank == 1
        return str(failed.value)

    texts = results_of(run_ranks("abc", program))
    for text in (texts[0], texts[2]):
        assert "rank 1 aborted the group: begins ä" in text and "ä ends" in text, text[:200]
        assert "bytes left out" in text and len(text) < 20_000
    assert "ä" * 100_000 in texts[1]  # the text is complete on the rank of the failure


class Proxy:
    """Stands before the control port of rank 1, and stops reading when told."""

    def __init__(self, shared: dict[str, bytes]) -> None:
        self.shared, self.stopped = shared, threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        near, _ = self.listener.accept()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        far = socket.create_connection(contact_of(self.shared["member/1"]))
        while not self.stopped.is_set():
            for ready in select.select([near, far], [], [], 0.05)[0]:
                (far if ready is near else near).sendall(ready.recv(4096))
        self.kept = near, far  # open, and unread


def test_leaving_sleeps_while_a_peer_does_not_read() -> None:
    shared: dict[str, bytes] = {}
    ready = threading.Barrier(3)
    proxy = Proxy(shared)

    def change(rank: int, key: str, value: bytes) -> bytes:
        proxied = rank == 0 and key == "member/1" and value
        return with_contact(value, proxy.listener.getsockname()[1]) if proxied else value

    def program(communicator: Communicator) -> float:
        all_reduce(communicator)
        if communicator.rank != 0:
            ready.wait(BOUND)
            return 0.0
        proxy.stopped.set()
        proxy.thread.join(BOUND)
        text = b"x" * 60_000
        with introduced(shared, 0, 2) as writer:
            for number in range(400):  # rank 0 forwards it to the peer that does not read
                writer.send(news(2, (1 << 40) + number, packed(REFUSAL, 1 << 30, 1, text)))
            writer.socket.shutdown(socket.SHUT_WR)
            writer.read_to_the_end()
            begin, wall = time.thread_time(), time.monotonic()
            communicator.leave()
            spent, wall = time.thread_time() - begin, time.monotonic() - wall
            assert wall > 1, "the peer has read after all"
        ready.wait(BOUND)
        return spent

    spent = results_of(
        run_ranks("abc", program, store=lambda rank: OpenStore(shared, rank, change))
    )
    assert spent[0] < 0.3


def test_news_for_a_peer_that_does_not_read_is_bounded() -> None:
    shared: dict[str, bytes] = {}
    sending = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])  # the kernel's buffer
    limit = (2 << 20) + sending
    text = b"x" * 60_000

    def program(communicator: Communicator) -> int:
        all_reduce(communicator)
        if communicator.rank != 0:
            all_reduce(communicator)
            return 0
        with introduced(shared, 0, 1) as reader, introduced(shared, 0, 2) as writer:
            reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            for number in range(2 * limit // len(text)):  # rank 0 forwards it to rank 1
                writer.send(news(2, (1 << 40) + number, packed(REFUSAL, 1 << 30, 1, text)))
            writer.socket.shutdown(socket.SHUT_WR)
            writer.read_to_the_end()  # rank 0 has read all
            came = 0
            while len(part := reader.socket.recv(1 << 20)) > HEARTBEAT:
                came += len(part)
        all_reduce(communicator)
        return came

    came = results_of(run_ranks("abc", program, store=lambda rank: OpenStore(shared, rank)))[0]
    assert 1 << 20 < came < limit, came


def unreachable(shared: dict[str, bytes], ports: dict[int, int]) -> Callable[[int], OpenStore]:
    """Stores in which rank 0 finds these ports in place of the contacts of other ranks."""

    def change(rank: int, key: str, value: bytes) -> bytes:
        stage, _, peer = key.partition("/")
        if rank != 0 or stage != "member" or int(peer) not in ports or not value:
            return value
        return with_contact(value, ports[int(peer)])

    return lambda rank: OpenStore(shared, rank, change)


def test_all_unresponsive_peers_are_named() -> None:
    with unresponsive_listener() as one, unresponsive_listener() as two:
        ports = {1: one.getsockname()[1], 2: two.getsockname()[1]}
        results = run_ranks("abcd", all_reduce, store=unreachable({}, ports), timeout=12.0)
    for result in results:
        assert isinstance(result, _core.Error), result
        assert "rank 1 at 127.0.0.1" in str(result) and "rank 2 at 127.0.0.1" in str(result)
        assert "does not answer" in str(result) and "HETCOMM_SOCKET_IFNAME" in str(result)


def test_a_closed_control_port_names_its_rank() -> None:
    """A rank that ended during set-up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    results = run_ranks("aba", all_reduce, store=unreachable({}, {2: port}), timeout=12.0)
    assert all(isinstance(result, _core.PeerFailedError) for result in results), results
    for result in results:
        assert result.peer == 2, result
        assert "cannot connect to rank 2 at 127.0.0.1" in str(result), result
        assert "the loopback reaches its own host only" in str(result), result
        assert "its process has ended or given up" in str(result), result


@pytest.mark.slow
def test_a_rank_that_ends_before_it_accepts_is_named() -> None:
    """Its system resets the connections in its queue, before or after rank 0 sees that connections
    are made."""

    def program(communicator: Communicator) -> None:
        with pytest.raises(_core.PeerFailedError) as failed:
            all_reduce(communicator)
        assert failed.value.peer == 2, failed.value

    listener = socket.create_server(("127.0.0.1", 0))
    made = unreachable({}, {2: listener.getsockname()[1]})

    def end() -> None:
        assert select.select([listener], [], [], BOUND)[0], "rank 0 did not connect"
        listener.close()

    ending = threading.Thread(target=end)
    ending.start()
    results = run_ranks("aba", program, store=made, timeout=12.0)
    ending.join()
    for result in results:
        if isinstance(result, _core.PeerFailedError):  # set-up had not ended yet
            assert result.peer == 2, result
        else:
            assert result is None, result


@pytest.mark.slow
def test_a_neighbour_without_a_proof_is_given_up() -> None:
    """Another program has the address of rank 1, and stays silent. Rank 1 never hears of rank 0.
    A neighbour may be stopped for a while."""

    begin = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = unreachable({}, {1: listener.getsockname()[1]})
        results = run_ranks("ab", all_reduce, store=made)
    assert 29 < time.monotonic() - begin < 60
    for rank, result in enumerate(results):
        assert isinstance(result, _core.PeerFailedError) and result.peer == 1 - rank, results


def test_signals_during_set_up_are_handled() -> None:
    """Signals do not end the wait for a peer that answers late."""
    shared: dict[str, bytes] = {}
    over = threading.Event()
    threads: dict[int, int] = {}
    connects = threading.Event()  # rank 0, which knows all ranks

    def connect_to_rank_1(listener: socket.socket) -> None:
        """Empties the queue after a while, and connects the next peer to rank 1."""
        connects.wait(BOUND)
        for _ in range(20):
            signal.pthread_kill(threads[0], signal.SIGUSR1)
            over.wait(0.05)
        links = []
        listener.listen(64)
        listener.settimeout(0.2)
        while not over.is_set():
            try:
                links.append(listener.accept()[0])
            except TimeoutError:
                continue
            thread = threading.Thread(target=forward, args=(links[-1],), daemon=True)
            thread.start()

    def forward(source: socket.socket) -> None:
        # Ranks that are connected already may end meanwhile.
        with (
            suppress(OSError),
            socket.create_connection(contact_of(shared["member/1"]), BOUND) as onwards,
        ):
            back = threading.Thread(target=copy, args=(onwards, source), daemon=True)
            back.start()
            copy(source, onwards)

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    class Known(OpenStore):
        def get(self, key: str, timeout: timedelta) -> bytes:
            value = super().get(key, timeout)
            if self.rank == 0 and key == "member/1":
                connects.set()
            return value

    def known(rank: int) -> Known:
        threads[rank] = threading.get_ident()
        return Known(shared, rank, change)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with unresponsive_listener() as listener:
            made = unreachable(shared, {1: listener.getsockname()[1]})
            change = made(0).change
            helper = threading.Thread(target=connect_to_rank_1, args=(listener,))
            helper.start()
            try:
                results_of(run_ranks("ab", all_reduce, store=known))
            finally:
                over.set()
                helper.join(BOUND)
    finally:
        signal.signal(signal.SIGUSR1, before)
