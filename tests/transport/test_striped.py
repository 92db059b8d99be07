"""The striped transport: conformance, how messages are divided, and messages of unexpected size."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_conformance import ProcessConformance
from transport_peers import Child, Pair, child_meet_and_wait, finish, pattern, until

from hetcomm import _core

GIGABIT = 125_000_000
MARK = 1 << 51  # below the bits that every mask compares
NO_MARK = 2**64 - 1 - MARK  # a mask as the executor's
RATES = [GIGABIT, GIGABIT // 2]  # 19 KB and more are divided
LONG = 3 << 20
bandwidths = st.lists(st.integers(1, 10**14), min_size=1, max_size=5).map(
    lambda found: sorted(found, reverse=True)
)


def make() -> _core.Transport:
    return _core.make_transport("striped", ["lo", "lo"], bandwidths=RATES)


def make_too_fast_to_divide() -> _core.Transport:
    return _core.make_transport("striped", ["lo", "lo"], bandwidths=[10**15] * 2)


class TestWhole(ProcessConformance):
    make = staticmethod(make_too_fast_to_divide)
    same_host = False


class TestDivided(ProcessConformance):
    make = staticmethod(make)
    same_host = False
    closes_unreceived = False  # the peer may yet ask for a part

    test_another_process_echoes = None  # these messages need sizes that it does not know

    def test_the_path_names_every_rail(self, pair: Pair) -> None:
        assert pair.to_b.describe() == "tcp over lo + tcp over lo"

    def test_a_failure_names_the_nic(self, start: Callable[[Child], tuple]) -> None:
        transport, link, child, connection = start(child_meet_and_wait)
        finish([transport], [transport.recv(1, bytearray(5)), link.send(8, b"hello back")])
        until([transport], lambda: connection.poll())
        sends = [link.send(9, bytearray(LONG)) for _ in range(3)]
        os.kill(child.pid, signal.SIGKILL)
        finish([transport], sends)
        with pytest.raises(_core.PeerFailedError, match=r"over lo\b"):
            sends[-1].check()
        until([transport], lambda: link.closed)


@pytest.fixture
def pair() -> Pair:
    return Pair(make, False)


@given(st.integers(0, 2**40), bandwidths)
def test_parts_add_up_and_follow_the_rates(size: int, rates: list[int]) -> None:
    parts = _core.divide(size, rates)
    assert sum(parts) == size and len(parts) in (1, len(rates))
    if len(parts) > 1:
        assert parts[0] > 0
        for part, rate in zip(parts, rates, strict=True):
            assert abs(part - size * rate / sum(rates)) <= 4096 + 1


@given(st.integers(0, 2**40), bandwidths)
def test_messages_are_divided_only_to_save_time(size: int, rates: list[int]) -> None:
    saved = size / rates[0] - size / sum(rates)
    if abs(saved - 50e-6) > 1e-9:
        divided = len(_core.divide(size, rates)) > 1
        assert divided == (len(rates) > 1 and saved > 50e-6 and size >= 4096 * len(rates))


def test_twice_the_rate_carries_twice_the_bytes() -> None:
    assert _core.divide(3 << 20, RATES) == [2 << 20, 1 << 20]


def test_a_whole_message_is_not_taken_for_a_part(pair: Pair) -> None:
    into = bytearray(LONG)
    receive = pair.b.recv(5, into, mask=MARK - 1)
    finish(pair.both, [pair.to_b.send(5, b"too short"), receive])
    assert (receive.bytes, receive.tag) == (9, 5)


@pytest.mark.parametrize("sent", [4, 5])
@pytest.mark.parametrize("size", [9, LONG // 2, LONG, 2 * LONG])
def test_a_receive_by_another_mask_takes_no_part(pair: Pair, sent: int, size: int) -> None:
    """Its sender does not keep waiting for later parts."""
    send = pair.to_b.send(sent, pattern(size, 1))
    receive = pair.b.recv(5, bytearray(LONG), mask=~(MARK | 0x1F) & (2**64 - 1))
    finish(pair.both, [send, receive])
    try:
        receive.check()
        assert (receive.tag, receive.bytes) == (sent, size) or receive.tag != 5
    except _core.InvalidArgumentError:
        assert size != LONG


@pytest.mark.parametrize("awaited", [8, 15_000, LONG // 2, LONG - 4096])
def test_a_part_is_not_taken_for_a_whole_message(pair: Pair, awaited: int) -> None:
    """A longer message than expected is an error, or has another tag."""
    into = bytearray(awaited)
    send = pair.to_b.send(5, pattern(LONG, 1))
    receive = pair.b.recv(5, into, mask=MARK - 1)
    finish(pair.both, [receive])
    with pytest.raises(_core.InvalidArgumentError):
        receive.check()
    pair.to_b.close(flush=False)
    until(pair.both, lambda: pair.to_b.closed and send.done)


def test_a_first_part_that_fits_has_another_tag(pair: Pair) -> None:
    total = 20_480
    awaited = _core.divide(total, RATES)[0]
    assert awaited < total and _core.divide(awaited, RATES) == [awaited]
    send = pair.to_b.send(5, pattern(total, 1))
    receive = pair.b.recv(5, bytearray(awaited), mask=MARK - 1)
    finish(pair.both, [receive])
    receive.check()
    assert (receive.bytes, receive.tag) == (awaited, 5 | MARK)
    pair.to_b.close(flush=False)
    until(pair.both, lambda: pair.to_b.closed and send.done)


def test_a_short_message_is_an_error(pair: Pair) -> None:
    send = pair.to_b.send(5, pattern(LONG // 2, 1))
    receive = pair.b.recv(5, bytearray(LONG))
    finish(pair.both, [send, receive])
    with pytest.raises(_core.InvalidArgumentError, match=f"of {LONG} bytes; got one of another"):
        receive.check()


def test_a_cancelled_receive_takes_no_part(pair: Pair) -> None:
    gone, into = bytearray(LONG), bytearray(LONG)
    cancelled = pair.b.recv(5, gone)
    pair.b.cancel(cancelled)
    finish(pair.both, [cancelled])
    with pytest.raises(_core.AbortedError):
        cancelled.check()
    finish(pair.both, [pair.to_b.send(5, pattern(LONG, 2)), pair.b.recv(5, into)])
    assert into == pattern(LONG, 2) and gone == bytes(LONG)


def test_garbage_addresses_close_opened_rails(pair: Pair) -> None:
    short = pair.a.address(False)[:-8]
    with pytest.raises(_core.TransportError) as error:
        pair.b.connect(short, 3)
    assert error.value.peer == 3


def make_three() -> _core.Transport:
    return _core.make_transport("striped", ["lo"] * 3, bandwidths=[*RATES, GIGABIT // 4])


@pytest.mark.parametrize("turns", [0, 1, 4, 40])
@pytest.mark.parametrize("losers", ["a", "b", "ab"])
@pytest.mark.parametrize(
    ("maker", "stripe"), [(make, 0), (make, 1), (make_three, 0), (make_three, 1)]
)
def test_parts_of_a_lost_stripe_come_again(
    maker: Callable[[], _core.Transport], stripe: int, losers: str, turns: int
) -> None:
    """Messages of one tag keep their order, in both directions, whichever end notices."""
    pair = Pair(maker, False)
    ends = [(pair.to_b, pair.b, pair.to_a), (pair.to_a, pair.a, pair.to_b)]
    wanted = [pattern(size, seed) for seed, size in enumerate([LONG, 9, LONG, 9, LONG, 9] * 2)]
    got = [bytearray(len(each)) for each in wanted]
    requests = []

    def post(sends: range, receives: range) -> None:
        for number, (link, receiver, back) in enumerate(ends):
            requests.extend(link.send(5, wanted[6 * number + i]) for i in sends)
            requests.extend(receiver.recv(5, got[6 * number + i], NO_MARK, back) for i in receives)

    post(range(4), range(2))
    for _ in range(turns):
        for transport in pair.both:
            transport.progress()
    if "a" in losers:
        pair.to_b.lose(stripe)
    if "b" in losers:
        pair.to_a.lose(stripe)
    post(range(4, 6), range(2, 6))
    finish(pair.both, requests)
    for request in requests:
        request.check()
    assert got == wanted
    assert pair.to_a.lost == pair.to_b.lost == [stripe]


class Traffic:
    """Messages of random sizes in both directions, posted bit by bit, of a few tags."""

    def __init__(self, pair: Pair, random: Random) -> None:
        self.pair, self.random = pair, random
        self.links = [pair.to_b, pair.to_a]
        self.receivers = [(pair.b, pair.to_a), (pair.a, pair.to_b)]
        self.sent: list[dict[int, list[bytes]]] = [{}, {}]  # by direction and tag, not received
        self.awaited: list[dict[int, list[int]]] = [{}, {}]  # the sizes of receives without a send
        self.pairs: list[tuple[bytearray, bytes]] = []
        self.open: list[dict[int, list[bytearray]]] = [{}, {}]
        self.requests: list[_core.Request] = []

    def size(self) -> int:
        return self.random.choice([0, 1, 9, 5000, 20_000, 100_000, 300_000, 1 << 20])

    def send(self) -> None:
        way, tag = self.random.randrange(2), self.random.randrange(1, 4)
        awaited = self.awaited[way].setdefault(tag, [])
        size = awaited.pop(0) if awaited else self.size()
        data = self.random.randbytes(size)
        into = self.open[way].setdefault(tag, [])
        if into:
            self.pairs.append((into.pop(0), data))
        else:
            self.sent[way].setdefault(tag, []).append(data)
        self.requests.append(self.links[way].send(tag, bytearray(data)))

    def receive(self) -> None:
        way, tag = self.random.randrange(2), self.random.randrange(1, 4)
        sent = self.sent[way].setdefault(tag, [])
        into = bytearray(len(sent[0]) if sent else self.size())
        if sent:
            self.pairs.append((into, sent.pop(0)))
        else:
            self.awaited[way].setdefault(tag, []).append(len(into))
            self.open[way].setdefault(tag, []).append(into)
        receiver, back = self.receivers[way]
        self.requests.append(receiver.recv(tag, into, NO_MARK, back))

    def progress(self) -> None:
        for _ in range(self.random.choice([1, 2, 10, 100])):
            self.random.choice(self.pair.both).progress()

    def end(self) -> None:
        """Every send gets its receive, and the other way round."""
        for way in range(2):
            for tag in range(1, 4):
                receiver, back = self.receivers[way]
                for data in self.sent[way].get(tag, []):
                    into = bytearray(len(data))
                    self.pairs.append((into, data))
                    self.requests.append(receiver.recv(tag, into, NO_MARK, back))
                for into in self.open[way].get(tag, []):
                    data = self.random.randbytes(len(into))
                    self.pairs.append((into, data))
                    self.requests.append(self.links[way].send(tag, bytearray(data)))
        finish(self.pair.both, self.requests)
        for request in self.requests:
            request.check()
        for into, data in self.pairs:
            assert into == data


@pytest.mark.parametrize("seed", range(40))
def test_random_traffic_survives_random_losses(seed: int) -> None:
    """All stripes but one get lost, at either end, at random moments."""
    random = Random(seed)
    stripes = random.choice([2, 3, 4])
    rates = [GIGABIT // (1 + i) for i in range(stripes)]
    traffic = Traffic(
        Pair(lambda: _core.make_transport("striped", ["lo"] * stripes, bandwidths=rates), False),
        random,
    )
    lost = random.sample(range(stripes), stripes - 1)
    for stripe in lost:
        for _ in range(random.choice([2, 10, 40])):
            random.choice([traffic.send, traffic.send, traffic.receive, traffic.progress])()
        random.choice(traffic.links).lose(stripe)
    for _ in range(20):
        random.choice([traffic.send, traffic.receive, traffic.progress])()
    traffic.end()
    assert sorted(traffic.links[0].lost) == sorted(traffic.links[1].lost) == sorted(lost)


@pytest.mark.parametrize("stripe", [0, 1])
def test_many_short_messages_go_before_and_after_a_loss(pair: Pair, stripe: int) -> None:
    into = [bytearray(9) for _ in range(5000)]
    for first in (0, 2500):
        requests = [pair.to_b.send(5, pattern(9, i)) for i in range(first, first + 2500)]
        requests += [
            pair.b.recv(5, each, NO_MARK, pair.to_a) for each in into[first : first + 2500]
        ]
        finish(pair.both, requests)
        pair.to_a.lose(stripe)
    assert into == [pattern(9, i) for i in range(5000)]


def test_a_sender_need_not_wait_for_a_late_receive(pair: Pair) -> None:
    """A part of a lost stripe comes from the copy of a message that its sender has overwritten."""
    size = 300_000  # on one host UCX itself waits for receives of 512 KiB and more
    data, into = pattern(size, 1), bytearray(size)
    sent = bytearray(data)
    finish(pair.both, [pair.to_b.send(5, sent)])
    sent[:] = bytes(size)
    pair.to_b.lose(1)
    receive = pair.b.recv(5, into, NO_MARK, pair.to_a)
    finish(pair.both, [receive])
    receive.check()
    assert into == data


@pytest.mark.parametrize("losers", ["a", "b", "ab"])
@pytest.mark.parametrize("stripe", [0, 1])
def test_a_stripe_may_be_lost_before_the_link_opens(losers: str, stripe: int) -> None:
    a, b = make(), make()
    to_b = a.connect(b.address(False), 1, open=False)
    to_a = b.connect(a.address(False), 0, open=False)
    if "a" in losers:
        to_b.lose(stripe)
    if "b" in losers:
        to_a.lose(stripe)
    to_b.open()
    to_a.open()
    wanted = [pattern(size, size) for size in (9, LONG, 9)]
    got = [bytearray(len(each)) for each in wanted * 2]
    requests = [link.send(5, each) for link in (to_b, to_a) for each in wanted]
    requests += [b.recv(5, into, NO_MARK, to_a) for into in got[:3]]
    requests += [a.recv(5, into, NO_MARK, to_b) for into in got[3:]]
    finish([a, b], requests)
    assert got == wanted * 2 and to_a.lost == to_b.lost == [stripe]


def test_the_last_stripe_is_never_lost(pair: Pair) -> None:
    for stripe in (0, 1):
        pair.to_b.lose(stripe)
    into = bytearray(LONG)
    finish(
        pair.both,
        [pair.to_b.send(5, pattern(LONG, 1)), pair.b.recv(5, into, NO_MARK, pair.to_a)],
    )
    assert into == pattern(LONG, 1) and pair.to_b.lost == pair.to_a.lost == [0]


@pytest.mark.parametrize("size", [9, LONG])
def test_what_a_lost_stripe_brought_is_gone_and_comes_again(pair: Pair, size: int) -> None:
    """A message without a receive counts as arrived all the same."""
    data, into = pattern(size, 1), bytearray(size)
    send = pair.to_b.send(5, data)
    until(pair.both, lambda: pair.b.arrived(5, NO_MARK) is not None)
    pair.to_a.lose(0)
    until(pair.both, lambda: pair.to_b.lost == [0])
    for _ in range(200):
        for transport in pair.both:
            transport.progress()
    assert pair.b.arrived(5, NO_MARK) is not None
    receive = pair.b.recv(5, into, NO_MARK, pair.to_a)
    finish(pair.both, [send, receive])
    assert into == data
    assert pair.b.arrived(5, NO_MARK) is None


@pytest.mark.parametrize(("heard", "stripe"), [(False, 1), (True, 0)])
def test_a_link_that_closes_still_sends_lost_parts(pair: Pair, heard: bool, stripe: int) -> None:
    """Its peer has not confirmed the message yet, and may have heard that this end leaves."""
    size = 300_000  # copied at once
    data, into = pattern(size, 1), bytearray(size)
    finish(pair.both, [pair.to_b.send(5, data)])
    pair.to_b.close(flush=True)
    for _ in range(500 * heard):
        for transport in pair.both:
            transport.progress()
    pair.to_a.lose(stripe)
    receive = pair.b.recv(5, into, NO_MARK, pair.to_a)
    finish(pair.both, [receive])
    receive.check()
    assert into == data
    pair.to_a.close(flush=True)
    until(pair.both, lambda: pair.to_a.closed and pair.to_b.closed)


def test_a_receive_ends_with_the_connection(pair: Pair) -> None:
    """The sender of a lost part can no longer be asked."""
    size = 300_000
    finish(pair.both, [pair.to_b.send(5, pattern(size, 1))])
    pair.to_a.lose(1)
    receive = pair.b.recv(5, bytearray(size), NO_MARK, pair.to_a)
    pair.to_b.close(flush=False)
    until(pair.both, lambda: pair.to_b.closed)
    pair.a = pair.to_b = pair.both = None  # the transport closes its sockets
    finish([pair.b], [receive])
    with pytest.raises(_core.TransportError, match="before the whole message came"):
        receive.check()


def connections_with_about(received: int) -> list[socket.socket]:
    """The TCP connections of this process that have received about so many bytes."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            copy = socket.socket(fileno=os.dup(int(number)))
        except OSError:  # the descriptor is closed, or no socket
            continue
        try:
            facts = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            count = int.from_bytes(facts[128:136], sys.byteorder)  # tcpi_bytes_received
            if 0.8 * received < count < 1.2 * received:
                found.append(copy)
        except OSError:
            pass
    return found


def test_a_failed_stripe_is_noticed_without_a_send(pair: Pair) -> None:
    first = pair.b.recv(5, bytearray(LONG), NO_MARK, pair.to_a)
    finish(pair.both, [pair.to_b.send(5, pattern(LONG, 1)), first])
    connections = connections_with_about(_core.divide(LONG, RATES)[1])
    assert connections
    into = bytearray(LONG)
    receive = pair.b.recv(5, into, NO_MARK, pair.to_a)
    for connection in connections:
        connection.shutdown(socket.SHUT_RDWR)
    until(pair.both, lambda: pair.to_a.lost == [1])
    send = pair.to_b.send(5, pattern(LONG, 2))
    finish(pair.both, [send, receive])
    receive.check()
    assert into == pattern(LONG, 2) and pair.to_b.lost == [1]
