"""Required behaviour of every transport inside one process.

A transport's test subclasses TransportConformance, or ProcessConformance, and makes the transport.
See test_loopback.py.
"""

import multiprocessing
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from transport_peers import (
    BOUND,
    OWN_TAGS,
    Pair,
    failed,
    finish,
    leave_everything_open,
    pattern,
    until,
)

from hetcomm import _core
from hetcomm._core import MemoryKind

SIZES = [0, 1, 7, 8, 100, 4095, 4096, 8192, 65536, 65537, 300_000, 1 << 20, 8 << 20]
spawn = multiprocessing.get_context("spawn")


def growth_of_resources(make: Callable[[], _core.Transport], same_host: bool) -> dict[str, int]:
    """How many descriptors and threads this process has more after the use of 200 transports."""

    def use() -> None:
        pair = Pair(make, same_host)
        finish(pair.both, [pair.to_b.send(1, b"12345678"), pair.b.recv(1, bytearray(8))])

    def resources() -> dict[str, int]:
        return {name: len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task")}

    for _ in range(5):
        use()
    before = resources()
    for _ in range(100):
        use()
    deadline = time.monotonic() + BOUND
    while resources() != before and time.monotonic() < deadline:
        time.sleep(0.01)  # /proc lists a thread for a moment after its join
    return {name: count - before[name] for name, count in resources().items()}


class TransportConformance:
    """Subclasses set `make` (a module-level function, so that child processes can call it too) and
    `same_host`."""

    make: Callable[[], _core.Transport]
    same_host: bool
    notices_death = True  # by a peer that has not closed the link

    @pytest.fixture
    def pair(self) -> Iterator[Pair]:
        yield Pair(type(self).make, self.same_host)

    def test_describes_itself(self, pair: Pair) -> None:
        assert pair.a.name in _core.transport_kinds()
        assert pair.a.version and pair.to_b.describe()

    def test_only_stated_kinds_of_memory_are_direct(self, pair: Pair) -> None:
        stated = _core.transport_kinds()[pair.a.name]
        assert MemoryKind.host in stated and pair.a.why_not_direct(MemoryKind.host) == ""
        for memory in set(MemoryKind.__members__.values()) - set(stated):
            for device in ("", "mlx5_0"):
                assert pair.a.why_not_direct(memory, device) != ""

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("expected", [True, False], ids=["posted", "unexpected"])
    def test_carries_every_size(self, pair: Pair, size: int, expected: bool) -> None:
        data, into = pattern(size, size), bytearray(size)
        receives = [pair.b.recv(3, into)] if expected else []
        send = pair.to_b.send(3, data)
        marker = pair.to_b.send(4, b"marker")
        received = bytearray(6)
        finish(pair.both, [pair.b.recv(4, received)])
        if not expected:
            receives = [pair.b.recv(3, into)]
        finish(pair.both, [send, marker, *receives])
        for request in [send, *receives]:
            request.check()
        assert into == data
        assert (receives[0].bytes, receives[0].tag) == (size, 3)

    def test_keeps_order_within_a_tag(self, pair: Pair) -> None:
        sizes = random.Random(1).choices([8, 5000, 70_000, 600_000], k=60)
        sends = [pair.to_b.send(9, pattern(size, i)) for i, size in enumerate(sizes)]
        intos = [bytearray(size) for size in sizes]
        receives = [pair.b.recv(9, into) for into in intos]
        finish(pair.both, sends + receives)
        for i, (size, into, receive) in enumerate(zip(sizes, intos, receives, strict=True)):
            receive.check()
            assert receive.bytes == size and into == pattern(size, i)

    def test_mask_selects_bits(self, pair: Pair) -> None:
        for tag in (0x1_0000_0007, 0x2_0000_0007, 0x2_0000_0008):
            finish(pair.both, [pair.to_b.send(tag, tag.to_bytes(8, "little"))])
        into = bytearray(8)
        high, low = 0xFFFF_FFFF_0000_0000, 0x0000_0000_FFFF_FFFF
        for tag, mask, expected in [
            (0x2_0000_0000, high, 0x2_0000_0007),
            (0x0_0000_0007, low, 0x1_0000_0007),
            (0, OWN_TAGS, 0x2_0000_0008),
        ]:
            receive = pair.b.recv(tag, into, mask=mask)
            finish(pair.both, [receive])
            assert receive.tag == expected == int.from_bytes(into, "little")

    @pytest.mark.parametrize("seed", range(3))
    def test_random_interleavings_both_ways(self, pair: Pair, seed: int) -> None:
        chance = random.Random(seed)
        ends = [(pair.to_b, pair.b), (pair.to_a, pair.a)]
        todo, requests, checks = [], [], []
        for number in range(500):
            size = chance.choice([0, 8, 8, 300, 5000, 20_000, 150_000, 1 << 20])
            way, data = chance.randrange(2), pattern(size, number)
            into = bytearray(size)
            todo += [(chance.random(), way, "send", number, data)]
            todo += [(chance.random(), way, "recv", number, into)]
            checks.append((data, into))
        for _, way, kind, number, buffer in sorted(todo, key=lambda each: each[0]):
            link, receiver = ends[way]
            requests.append(
                link.send(number, buffer) if kind == "send" else receiver.recv(number, buffer)
            )
            if chance.random() < 0.3:
                pair.both[chance.randrange(2)].progress()
        finish(pair.both, requests)
        for request in requests:
            request.check()
        assert all(data == into for data, into in checks)

    @pytest.mark.parametrize("size", [100, 50_000, 4 << 20])
    @pytest.mark.parametrize("expected", [True, False], ids=["posted", "unexpected"])
    def test_overlong_message_is_an_error(self, pair: Pair, size: int, expected: bool) -> None:
        into = bytearray(b"\xaa" * size)
        window = memoryview(into)[: size // 2]
        receives = [pair.b.recv(5, window)] if expected else []
        send = pair.to_b.send(5, pattern(size, 0))
        marker = pair.to_b.send(6, b"x")
        finish(pair.both, [pair.b.recv(6, bytearray(1))])
        receives = receives or [pair.b.recv(5, window)]
        finish(pair.both, [send, marker, *receives])
        with pytest.raises(_core.InvalidArgumentError, match=str(size // 2)):
            receives[0].check()
        assert into[size // 2 :] == b"\xaa" * (size - size // 2)
        again = bytearray(10)
        finish(pair.both, [pair.to_b.send(5, b"still here"), pair.b.recv(5, again)])
        assert again == b"still here"

    def test_cancelled_receive_takes_nothing(self, pair: Pair) -> None:
        gone, kept = bytearray(8), bytearray(8)
        cancelled = pair.b.recv(7, gone)
        pair.b.cancel(cancelled)
        finish(pair.both, [cancelled])
        with pytest.raises(_core.AbortedError):
            cancelled.check()
        finish(pair.both, [pair.to_b.send(7, b"arrives!"), pair.b.recv(7, kept)])
        assert kept == b"arrives!" and gone == bytes(8)

    def test_garbage_address_is_rejected(self, pair: Pair) -> None:
        good = pair.a.address(self.same_host)
        flipped = good[:-1] + bytes([good[-1] ^ 1])
        for bad in (b"", b"nonsense", good[:-1], good + b"x", flipped):
            with pytest.raises(_core.TransportError) as error:
                pair.b.connect(bad, 5)
            assert error.value.peer == 5

    def test_send_after_close_is_an_error(self, pair: Pair) -> None:
        pair.to_b.close(flush=True)
        with pytest.raises(_core.AbortedError):
            pair.to_b.send(1, b"late").check()
        until(pair.both, lambda: pair.to_b.closed)
        pair.to_b.close(flush=False)  # a second call changes nothing
        assert pair.to_b.closed

    def connect(self, pair: Pair, later: int = 0) -> tuple[_core.Link, _core.Link]:
        """Connects a to b and back, after both ends agreed on an offer, `later` if > 0. Opens
        neither end."""
        to_b = pair.a.connect(pair.b.address(self.same_host), 1, open=False)
        to_a = pair.b.connect(pair.a.address(self.same_host), 0, open=False)
        assert to_b.describe() == to_a.describe() == ""
        while later > 0 or to_b.offer != to_a.offer:
            theirs = to_b.offer, to_a.offer
            to_b.counter(theirs[1], later)
            to_a.counter(theirs[0], later)
            later = 0
        return to_b, to_a

    @pytest.mark.parametrize("seed", range(5))
    def test_links_are_independent(self, pair: Pair, seed: int) -> None:
        """Links do not depend on other links, whichever end opens, uses or closes first. So groups
        of the same ranks are independent."""
        chance = random.Random(seed)
        links = []

        def turn() -> None:
            for _ in range(chance.choice([0, 0, 1, 3, 50])):
                chance.choice(pair.both).progress()

        for _ in range(40):
            what = chance.choice(["connect", "connect", "open", "use", "use", "close"])
            if what == "connect" or not links:
                pair.a.connect(pair.b.address(self.same_host), 1, open=False)  # and close
                links.append(self.connect(pair, chance.choice([0, 0, 1, 4])))
            elif what == "open":
                chance.choice(chance.choice(links)).open()
            elif what == "use":
                ends = chance.choice(links)
                for end in chance.sample(ends, 2):
                    end.open()
                    turn()
                self.exchange(pair, *ends, chance.choice([8, 50_000, 1 << 20]))
                assert ends[0].describe() == pair.to_b.describe()
            else:
                ends = links.pop(chance.randrange(len(links)))
                for end in chance.sample(ends, 2):
                    end.close(flush=chance.random() < 0.5)
                    turn()
                if chance.random() < 0.5:
                    until(pair.both, lambda ends=ends: all(end.closed for end in ends))
                del ends
            turn()

    @staticmethod
    def exchange(pair: Pair, to_b: _core.Link, to_a: _core.Link, size: int) -> None:
        data, intos = pattern(size, size), [bytearray(size) for _ in range(2)]
        requests = [
            pair.a.recv(20, intos[0], from_link=to_b),
            pair.b.recv(20, intos[1], from_link=to_a),
        ]
        requests += [link.send(20, data) for link in (to_b, to_a)]
        finish(pair.both, requests)
        for request in requests:
            request.check()
        assert intos == [data, data]

    @pytest.mark.parametrize("flush", [True, False])
    def test_closing_before_connecting_works(self, pair: Pair, flush: bool) -> None:
        to_b, to_a = self.connect(pair)
        to_b.open()
        send = to_b.send(1, b"early")
        sent = send.done
        to_b.close(flush=flush)
        until(pair.both, lambda: to_b.closed and send.done)
        assert failed(send) == (not flush and not sent)
        to_a.close(flush=flush)
        until(pair.both, lambda: to_a.closed)

    def test_close_without_flush_cancels_sends(self, pair: Pair) -> None:
        sends = [pair.to_b.send(1, bytearray(8 << 20)) for _ in range(4)]
        pair.to_b.close(flush=False)
        finish([pair.a], sends)
        until([pair.a], lambda: pair.to_b.closed)
        assert any(failed(send) for send in sends)

    def test_flush_can_be_abandoned(self, pair: Pair) -> None:
        sends = [pair.to_b.send(1, bytearray(8 << 20)) for _ in range(4)]
        pair.to_b.close(flush=True)
        pair.a.progress()
        pair.to_b.close(flush=False)
        finish([pair.a], sends)
        until([pair.a], lambda: pair.to_b.closed)

    def test_links_may_vanish_while_closing(self, pair: Pair) -> None:
        sends = [pair.to_b.send(1, bytearray(8 << 20)) for _ in range(4)]
        pair.to_b.close(flush=True)
        pair.a.progress()
        del pair.to_b
        finish([pair.a], sends)
        assert any(failed(send) for send in sends)

    def test_vanished_peer_fails_the_link(self, pair: Pair) -> None:
        long = pair.to_b.send(8, bytearray(8 << 20))
        del pair.b, pair.to_a, pair.both
        if self.notices_death:
            until([pair.a], lambda: long.done and failed(pair.to_b.send(9, b"later")))
            with pytest.raises((_core.PeerFailedError, _core.TransportError)) as error:
                pair.to_b.send(9, b"later").check()
            assert error.value.peer == 1
        pair.to_b.close(flush=False)
        until([pair.a], lambda: long.done and pair.to_b.closed)
        assert failed(long)

    def test_message_wakes_a_sleeper(self, pair: Pair) -> None:
        into = bytearray(8)
        receive = pair.a.recv(12, into)
        until(pair.both, pair.a.prepare_to_sleep)
        send = pair.to_a.send(12, b"wake me!")
        deadline = time.monotonic() + BOUND
        while not select.select([pair.a.event_fd], [], [], 0.01)[0]:
            assert time.monotonic() < deadline, "never woken"
            pair.b.progress()
        finish(pair.both, [send, receive])
        assert into == b"wake me!"

    def test_transport_may_vanish_with_everything_pending(self, pair: Pair) -> None:
        for tag in range(10):
            pair.to_b.send(tag, bytearray(1 << 20))
            pair.b.recv(100 + tag, bytearray(8))
        pair.a.progress()
        del pair.a, pair.b, pair.to_a, pair.to_b, pair.both

    def test_transports_leave_nothing_behind(self) -> None:
        with spawn.Pool(1) as pool:  # no other test opens or closes anything in that process
            growth = pool.apply_async(growth_of_resources, (type(self).make, self.same_host))
            assert growth.get(2 * BOUND) == {"fd": 0, "task": 0}

    def test_calls_may_come_from_different_threads(self, pair: Pair) -> None:
        arrived = []

        def exchange(number: int) -> None:
            into = bytearray(50_000)
            send = pair.to_b.send(1, pattern(50_000, number))
            finish(pair.both, [send, pair.b.recv(1, into)])
            arrived.append(into == pattern(50_000, number))

        for number in range(20):
            thread = threading.Thread(target=exchange, args=(number,))
            thread.start()
            thread.join()
        assert arrived == [True] * 20

    def test_process_may_end_with_everything_open(self) -> None:
        child = spawn.Process(target=leave_everything_open, args=(type(self).make, self.same_host))
        child.start()
        child.join(BOUND)
        alive = child.is_alive()
        child.kill()
        child.join(BOUND)
        assert not alive and child.exitcode == 0
