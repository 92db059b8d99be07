"""The ucx transport: conformance over shared memory and over TCP."""

import os
import signal
import struct
from collections.abc import Callable

import pytest
from process_conformance import ProcessConformance
from transport_peers import (
    BOUND,
    OWN_TAGS,
    Child,
    Pair,
    child_announce_large_send,
    failed,
    finish,
    until,
)

from hetcomm import _core


def make() -> _core.Transport:
    return _core.make_transport("ucx")


def make_tcp() -> _core.Transport:
    return _core.make_transport("ucx", shared_memory=False)


class UcxConformance(ProcessConformance):
    def test_send_waits_for_the_other_end_to_open(self, pair: Pair) -> None:
        to_b, _to_a = self.connect(pair)
        to_b.open()
        assert not to_b.send(1, b"early").done


class TestUcxSharedMemory(UcxConformance):
    make = staticmethod(make)
    same_host = True
    notices_death = False  # shared memory stays after its peer has died

    def test_ranks_of_one_host_use_shared_memory(self, pair) -> None:
        assert "shared memory" in pair.to_b.describe()


class TestUcxTcp(UcxConformance):
    make = staticmethod(make_tcp)
    same_host = False

    def test_ranks_of_different_hosts_use_no_shared_memory(self, pair) -> None:
        assert pair.to_b.describe().startswith("tcp over ")

    def test_a_message_of_a_dead_peer_fails_as_that_peer(
        self, start: Callable[[Child], tuple]
    ) -> None:
        """The message was announced. Only UCX cancels its receive."""
        transport, link, child, _ = start(child_announce_large_send)
        finish([transport], [transport.recv(1, bytearray(5))])
        os.kill(child.pid, signal.SIGKILL)
        child.join(BOUND)
        until([transport], lambda: failed(link.send(9, b"later")))
        receive = transport.recv(2, bytearray(8 << 20))
        finish([transport], [receive])
        with pytest.raises(_core.PeerFailedError, match="the peer has closed, died"):
            receive.check()
        link.close(flush=False)
        until([transport], lambda: link.closed)


def test_without_rdma_the_environment_does_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "posix,self")
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    pair = Pair(lambda: _core.make_transport("ucx", ["lo"], rdma=False), False)
    into = bytearray(5)
    finish([pair.a, pair.b], [pair.b.recv(6, into), pair.to_b.send(6, b"hello")])
    assert into == b"hello"
    assert pair.to_b.describe() == pair.to_a.describe() == "tcp over lo"


def test_notices_of_unknown_links_are_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    """The newest notices are kept, in case that a link follows."""
    pair = Pair(make, True)
    notices = [struct.pack("<41Q", 0, 0xABCD, place, *[0] * 38) for place in range(1100)]
    finish(pair.both, [pair.to_b.send(OWN_TAGS, notice) for notice in notices])
    printed: list[str] = []

    def warned() -> bool:
        printed.append(capfd.readouterr().err)
        return "more than 1024 links that this rank does not know of" in "".join(printed)

    until(pair.both, warned)
    finish(pair.both, [pair.b.recv(6, into := bytearray(5)), pair.to_b.send(6, b"hello")])
    assert into == b"hello"
    assert "".join(printed).count("does not know of") == 1
