"""The ucx transport: conformance over shared memory and over TCP."""

import pytest
from transport_conformance import TransportConformance
from transport_peers import Pair, finish

from hetcomm import _core


def make() -> _core.Transport:
    return _core.make_ucx_transport()


class TestUcxSharedMemory(TransportConformance):
    make = staticmethod(make)
    same_host = True
    notices_death = False  # shared memory stays when its peer is gone

    def test_uses_shared_memory(self, pair) -> None:
        assert "shared memory" in pair.to_b.describe()


class TestUcxTcp(TransportConformance):
    make = staticmethod(make)
    same_host = False

    def test_uses_no_shared_memory(self, pair) -> None:
        assert pair.to_b.describe().startswith("tcp over ")


def test_without_rdma_the_environment_does_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "posix,self")
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    pair = Pair(lambda: _core.make_ucx_transport(["lo"], rdma=False), False)
    into = bytearray(5)
    finish([pair.a, pair.b], [pair.b.recv(6, into), pair.to_b.send(6, b"hello")])
    assert into == b"hello"
    assert pair.to_b.describe() == pair.to_a.describe() == "tcp over lo"
