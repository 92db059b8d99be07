"""The loopback transport: conformance, and wake-ups of a sender."""

import select

import pytest
from transport_conformance import TransportConformance
from transport_peers import BOUND, Pair, finish, until

from hetcomm import _core


def make() -> _core.Transport:
    return _core.make_transport("loopback")


class TestLoopback(TransportConformance):
    make = staticmethod(make)
    same_host = True

    def test_received_message_wakes_its_sender(self, pair: Pair) -> None:
        send = pair.to_b.send(1, bytearray(1 << 20))
        until([pair.a], pair.a.prepare_to_sleep)
        finish([pair.b], [pair.b.recv(1, bytearray(1 << 20))])
        assert not send.done and select.select([pair.a.event_fd], [], [], BOUND)[0]
        finish([pair.a], [send])

    def test_address_of_a_transport_that_is_gone_is_rejected(self, pair: Pair) -> None:
        address = make().address(True)
        with pytest.raises(_core.TransportError, match="use another transport between processes"):
            pair.a.connect(address, 3)
