"""The ucx transport: conformance over shared memory and over TCP."""

from transport_conformance import TransportConformance

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
