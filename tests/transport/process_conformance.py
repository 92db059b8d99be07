"""Required behaviour of every transport between processes.

A transport's test subclasses ProcessConformance beside TransportConformance.
"""

import multiprocessing
import os
import select
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from transport_conformance import SIZES, TransportConformance
from transport_peers import (
    BOUND,
    Child,
    child_begin_large_send,
    child_echo,
    child_meet_and_wait,
    child_send_and_leave,
    failed,
    finish,
    pattern,
    run_child,
    until,
)

from hetcomm import _core

spawn = multiprocessing.get_context("spawn")


class ProcessConformance(TransportConformance):
    notices_death = True  # without closing the link
    closes_unreceived = True  # a link whose peer has yet to receive

    @pytest.fixture
    def start(self) -> Iterator[Callable[[Child], tuple]]:
        started = []

        def start(body: Child) -> tuple:
            connection, theirs = spawn.Pipe()
            child = spawn.Process(
                target=run_child, args=(type(self).make, self.same_host, theirs, body)
            )
            child.start()
            started.append(child)
            transport = type(self).make()
            link = transport.connect(connection.recv(), 1)
            connection.send(transport.address(self.same_host))
            return transport, link, child, connection

        yield start
        for child in started:
            child.kill()
            child.join(BOUND)

    def test_sleeps_until_something_arrives(self, start: Callable) -> None:
        transport, link, _, _ = start(child_echo)
        deadline = time.monotonic() + BOUND
        slept = 0
        while slept == 0:  # once more after an answer that came before the sleep
            into = bytearray(8)
            receive = transport.recv(12, into)
            send = link.send(11, b"wake me!")
            while not (receive.done and send.done):
                assert time.monotonic() < deadline
                if not transport.progress() and transport.prepare_to_sleep():
                    slept += 1
                    assert select.select([transport.event_fd], [], [], BOUND)[0], "never woken"
            assert into == b"wake me!"

    def test_another_process_echoes(self, start: Callable) -> None:
        transport, link, child, _ = start(child_echo)
        for number, size in enumerate(SIZES[1:]):
            data, into = pattern(size, number), bytearray(size)
            requests = [transport.recv(2 * number + 1, into), link.send(2 * number, data)]
            assert transport.wait(requests, BOUND)
            assert into == data
        finish([transport], [link.send(0, b"")])
        until([transport], lambda: not child.is_alive())
        assert child.exitcode == 0

    def test_close_lets_sent_data_drain(self, start: Callable) -> None:
        transport, link, child, connection = start(child_send_and_leave)
        if self.closes_unreceived:
            until([transport], lambda: connection.poll())
        intos = [bytearray(100_000) for _ in range(20)]
        receives = [transport.recv(tag, into, from_link=link) for tag, into in enumerate(intos)]
        finish([transport], receives)
        for tag, receive in enumerate(receives):
            receive.check()
            assert intos[tag] == pattern(100_000, tag)
        connection.send("seen")
        until([transport], lambda: not child.is_alive())
        assert child.exitcode == 0

    def test_killed_peer_fails_the_link(self, start: Callable) -> None:
        transport, link, child, connection = start(child_meet_and_wait)
        hello = bytearray(5)
        finish([transport], [transport.recv(1, hello), link.send(8, b"hello back")])
        until([transport], lambda: connection.poll())
        sends = [link.send(9, bytearray(8 << 20)) for _ in range(3)]
        receive = transport.recv(3, bytearray(8))
        transport.progress()
        os.kill(child.pid, signal.SIGKILL)
        child.join(BOUND)
        if self.notices_death:
            finish([transport], sends)
            with pytest.raises((_core.PeerFailedError, _core.TransportError)) as error:
                link.send(9, b"later").check()
            assert error.value.peer == 1
        transport.cancel(receive)
        link.close(flush=False)
        finish([transport], [*sends, receive])
        assert all(failed(request) for request in [*sends, receive])
        until([transport], lambda: link.closed)

    def test_killed_in_the_middle_of_a_message(self, start: Callable) -> None:
        transport, link, child, connection = start(child_begin_large_send)
        until([transport], lambda: connection.poll())
        receive = transport.recv(2, bytearray(256 << 20))
        for _ in range(50):
            transport.progress()
        os.kill(child.pid, signal.SIGKILL)
        child.join(BOUND)
        link.close(flush=False)
        transport.cancel(receive)
        finish([transport], [receive])
        assert failed(receive)
        until([transport], lambda: link.closed)
