"""Communicators whose ranks are threads: results against NumPy, disagreement, and set-up."""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from communicators import BOUND, COLLECTIVES, Call, executor, random_spec, results_of, run_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec

LAYOUTS = ["a", "aa", "ab", "aaa", "aab", "abc", "abab", "aabb", "abca", "aabbc", "abacab"]
UNREACHED = 2.0  # seconds of timeout for tests that wait for the timeout
UNFINISHED = 6.0  # the same, where a part of set-up must be over within the timeout


def sum_of(count: int, dtype: Dtype = Dtype.float32, **more: Any) -> Spec:
    return Spec(Collective.all_reduce, dtype, ReduceOp.sum, count=count, **more)


def all_reduce(communicator: Communicator, count: int = 8) -> None:
    Call(communicator, sum_of(count), 0, True).check()


def assert_all_fail(results: list[Any], kind: type[BaseException], *words: str) -> None:
    for rank, result in enumerate(results):
        assert isinstance(result, kind), f"rank {rank}: {result!r}"
        assert all(word in str(result) for word in words), f"rank {rank}: {result}"


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_every_collective_matches_numpy(hosts: str) -> None:
    def program(communicator: Communicator) -> None:
        rng = random.Random(hosts)
        for seed in range(6):
            for collective in COLLECTIVES:
                spec = random_spec(rng, len(hosts), collective.name)
                Call(communicator, spec, seed, rng.random() < 0.5).check()

    results_of(run_ranks(hosts, program))


@pytest.mark.parametrize("algorithm", _core.algorithms(), ids=str)
@pytest.mark.parametrize("hosts", ["aaa", "abab", "aabbc"])
def test_every_algorithm_matches_numpy(
    hosts: str, algorithm: _core.Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = algorithm.collective.name
    monkeypatch.setenv("HETCOMM_SELECT", f"{name}:0-inf={algorithm.name}")

    def program(communicator: Communicator) -> None:
        def applies(spec: _core.Spec) -> bool:
            return not algorithm.why_not(communicator.topology, spec)

        if not applies(_core.Spec(algorithm.collective)):
            return
        rng = random.Random(algorithm.name)
        specs = filter(applies, (random_spec(rng, len(hosts), name) for _ in itertools.count()))
        for seed, spec in enumerate(itertools.islice(specs, 4)):
            Call(communicator, spec, seed, True).check()

    results_of(run_ranks(hosts, program))


@pytest.mark.parametrize("hosts", ["aa", "aab"])
def test_works_of_several_communicators_may_be_waited_for_in_any_order(hosts: str) -> None:
    groups = 3
    stores = [_core.LocalStore() for _ in range(groups)]

    def program(first: Communicator) -> None:
        rank, size = first.rank, first.size
        others = [
            Communicator(store, rank, size, BOUND, f"{i}", executor(rank), hosts[rank])
            for i, store in enumerate(stores)
        ]
        communicators = [first, *others]
        shared = random.Random(hosts)  # the same calls on every rank ...
        calls = [
            Call(communicators[shared.randrange(groups + 1)], random_spec(shared, size), i, False)
            for i in range(60)
        ]
        random.Random(rank).shuffle(calls)  # ... waited for in another order on each
        for call in calls:
            call.check()
        for communicator in others:
            communicator.leave()

    results_of(run_ranks(hosts, program))


def test_threads_of_one_rank_share_a_communicator() -> None:
    """Collectives need one order. Messages do not, so each thread has a tag of its own."""

    def program(communicator: Communicator) -> None:
        peer, failures = 1 - communicator.rank, []

        def exchange(tag: int) -> None:
            try:
                for turn in range(20):
                    got = np.zeros(100, np.int64)
                    receive = communicator.recv(got, Dtype.int64, peer, tag)
                    mine = np.full(100, tag * 1000 + turn)
                    send = communicator.send(mine, Dtype.int64, peer, tag)
                    send.wait()
                    receive.wait()
                    assert (got == mine).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
        assert not failures, failures

    results_of(run_ranks("ab", program))


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_threads_of_one_rank_use_groups_of_their_own(hosts: str) -> None:
    """Some threads make collectives, another one asks for states, until a thread aborts each
    group."""
    groups, calls = 3, 30
    stores = [_core.LocalStore() for _ in range(groups)]

    def program(watched: Communicator) -> None:
        rank, size = watched.rank, watched.size
        others = [
            Communicator(store, rank, size, BOUND, f"{i}", executor(rank), hosts[rank])
            for i, store in enumerate(stores)
        ]
        failures: list[BaseException] = []
        shown: list[_core.Work] = []

        def collectives(number: int) -> None:
            try:
                rng = random.Random(number)
                for seed in range(calls):
                    call = Call(others[number], random_spec(rng, size), seed, rng.random() < 0.5)
                    shown.append(call.work)
                    call.check()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=collectives, args=(i,)) for i in range(groups)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                assert all(work.where() for work in shown[-groups:])
                assert all(other.path_to(1 - rank) for other in others)
                thread.join(0.002)
        assert not failures, failures
        all_reduce(watched)  # the other rank has finished, too
        waiting = others[0].recv(np.zeros(1), Dtype.float64, 1 - rank)
        ending = threading.Thread(target=others[0].abort)
        ending.start()
        with pytest.raises(_core.AbortedError):
            waiting.wait()
        ending.join()
        all_reduce(watched)
        for other in others:
            other.leave()

    results_of(run_ranks(hosts, program))


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_messages_are_matched_by_tag_and_keep_their_order(hosts: str, count: int) -> None:
    def program(communicator: Communicator) -> None:
        if communicator.rank == 0:
            messages = [(tag, np.full(count, 10 * tag + i)) for tag in (1, 2) for i in range(3)]
            works = [communicator.send(data, Dtype.int64, 1, tag) for tag, data in messages]
            for work in works:
                work.wait()
            return
        received = []
        for tag in (2, 1):
            for i in range(3):
                data = np.zeros(count, np.int64)
                received.append((communicator.recv(data, Dtype.int64, 0, tag), data, 10 * tag + i))
        for work, data, value in reversed(received):
            work.wait()
            assert (data == value).all()

    results_of(run_ranks(hosts, program))


DISAGREEMENTS = {
    "count": lambda rank: sum_of(8 + rank),
    "dtype": lambda rank: sum_of(8, Dtype.int32 if rank else Dtype.float32),
    "collective": lambda rank: Spec(
        Collective.broadcast if rank else Collective.all_reduce, count=8, in_place=True
    ),
    "root": lambda rank: Spec(Collective.broadcast, root=rank, count=8, in_place=True),
    "op": lambda rank: Spec(
        Collective.all_reduce, Dtype.float32, ReduceOp.max if rank else ReduceOp.sum, count=8
    ),
}


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab"])
@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_a_disagreement_fails_on_every_rank(what: str, hosts: str) -> None:
    def program(communicator: Communicator) -> str:
        spec = DISAGREEMENTS[what](communicator.rank % 2)
        try:
            Call(communicator, spec, 0, True).work.wait()
            communicator.submit(Spec(Collective.barrier, Dtype.uint8), None).wait()
        except _core.Error as error:
            with pytest.raises(type(error)):  # and later calls fail with the same cause
                all_reduce(communicator)
            return f"{type(error).__name__}: {error}"
        return "no error"

    for result in results_of(run_ranks(hosts, program)):
        assert result.startswith("InvalidArgumentError") and "agree" in result, result


def without_transport(count: int) -> list[_core.Executor]:
    return [_core.Executor.without_transport("planted: no libucp") for _ in range(count)]


def test_one_island_needs_no_transport() -> None:
    results_of(run_ranks("aa", all_reduce, executors=without_transport(2)))


def test_a_missing_transport_is_a_clear_error_where_a_link_is_needed() -> None:
    results = run_ranks("ab", all_reduce, executors=without_transport(2))
    assert_all_fail(results, _core.VendorError, "planted: no libucp")


class Planted(_core.Store):
    """The store of one rank. `trouble(operation, key)` runs before each operation."""

    def __init__(self, shared: dict[str, bytes], trouble: Any) -> None:
        super().__init__()
        self.shared, self.trouble = shared, trouble

    def set(self, key: str, value: bytes) -> None:
        self.shared[key] = self.trouble("set", key, value)

    def get(self, key: str, timeout: timedelta) -> bytes:
        self.trouble("get", key, b"")
        deadline = time.monotonic() + timeout.total_seconds()
        while key not in self.shared:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody set {key}")
            time.sleep(0.002)
        return self.shared[key]


def unharmed(operation: str, key: str, value: bytes) -> bytes:
    return value


def set_up(hosts: str, trouble: Any, troubled: int = 0, timeout: float = BOUND) -> list[Any]:
    """Set-up results of each rank, where the store troubles one rank."""
    shared: dict[str, bytes] = {}
    return run_ranks(
        hosts,
        all_reduce,
        store=lambda rank: Planted(shared, trouble if rank == troubled else unharmed),
        timeout=timeout,
        name="planted",
    )


def test_a_store_written_in_python_works() -> None:
    results_of(set_up("aab", unharmed))


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab"])
def test_a_missing_rank_is_named_within_the_timeout(hosts: str) -> None:
    missing = len(hosts) - 1

    def silent(operation: str, key: str, value: bytes) -> bytes:
        raise TimeoutError("planted: this rank never came")

    start = time.monotonic()
    results = set_up(hosts, silent, troubled=missing, timeout=UNFINISHED)
    assert time.monotonic() - start < UNFINISHED + BOUND / 2
    assert isinstance(results.pop(), _core.TimeoutError)  # its own store failed
    assert_all_fail(results, _core.TimeoutError, f"rank {missing}", '"planted"')
    assert all(result.peer == missing for result in results)


def test_a_failure_reaches_ranks_that_wait_for_a_missing_rank() -> None:
    shared: dict[str, bytes] = {}

    def garbage(operation: str, key: str, value: bytes) -> bytes:
        return b"garbage" if key == "member/1" and operation == "set" else value

    def missing(operation: str, key: str, value: bytes) -> bytes:
        raise OSError("planted: this rank never came")

    troubles = [unharmed, garbage, missing]
    start = time.monotonic()
    results = run_ranks("aab", all_reduce, store=lambda rank: Planted(shared, troubles[rank]))
    assert time.monotonic() - start < BOUND / 2  # rank 1 waits for rank 2
    assert_all_fail(results[:2], _core.Error, "rank 1: a record", "expected")
    assert results[1].peer == 1


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab"])
@pytest.mark.parametrize("garbage", [b"\xff" * 7, b"\x01" + bytes(7), bytes(64), b"\xff" * 4096])
def test_garbage_in_the_store_fails_on_every_rank(hosts: str, garbage: bytes) -> None:
    def liar(operation: str, key: str, value: bytes) -> bytes:
        return garbage if key == "member/0" and operation == "set" else value

    results = set_up(hosts, liar)
    assert_all_fail(results, _core.Error, "rank 0")
    assert not any(isinstance(result, _core.TimeoutError) for result in results), results


def test_a_different_version_is_named() -> None:
    def older(operation: str, key: str, value: bytes) -> bytes:
        return (77).to_bytes(8, "little") + value[8:] if key == "member/0" and value else value

    results = set_up("aab", older)
    assert_all_fail(results[1:], _core.Error, "rank 0", "77", "version")


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab"])
@pytest.mark.parametrize("stage", ["member", "agreed", "named", "ready"])
def test_a_rank_whose_store_breaks_fails_everywhere(hosts: str, stage: str) -> None:
    def broken(operation: str, key: str, value: bytes) -> bytes:
        if operation == "get" and key.startswith(stage):
            raise OSError("planted: the store broke")
        return value

    timeout = UNREACHED if stage in ("member", "agreed") else UNFINISHED
    results = set_up(hosts, broken, troubled=1, timeout=timeout)
    for rank, result in enumerate(results):
        # A rank that has read "ready" of all ranks may be done before another rank fails.
        assert isinstance(result, _core.Error) or stage == "ready", f"rank {rank}: {result!r}"
        # A rank that waits for a rank that waits for rank 1 may name the middle one.
        named = re.search("rank [01]", str(result))
        assert named or rank == 1 or stage == "ready", result
    assert "planted: the store broke" in str(results[1])


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0), (0, -1), (0, 1 << 20)])
def test_impossible_ranks_and_sizes_are_rejected(rank: int, size: int) -> None:
    with pytest.raises(_core.InvalidArgumentError, match=f"got rank {rank} and size {size}"):
        Communicator(_core.LocalStore(), rank, size)


def test_used_numbers_are_skipped_after_wrapping() -> None:
    numbers = _core.Numbers(4)
    assert [numbers.take() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(_core.InvalidArgumentError, match="at most 4 ranks at a time"):
        numbers.take()
    numbers.release(2)
    assert numbers.take() == 2
    numbers.release(3)
    numbers.release(1)
    numbers.release(2)
    assert [numbers.take() for _ in range(3)] == [3, 1, 2]  # the number released last comes last


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=60))
def test_blocks_of_numbers_are_aligned_and_apart(requests: list[tuple[int, int]]) -> None:
    limit = 200
    numbers, taken = _core.Numbers(limit), dict[int, int]()
    for bits, which in requests:
        count = 1 << bits
        if which < len(taken) // 2:
            first = sorted(taken)[which]
            numbers.release(first)
            del taken[first]
        try:
            first = numbers.take(count)
        except _core.InvalidArgumentError:
            used = {number for first in taken for number in range(first, first + taken[first])}
            free = (set(range(start, start + count)) for start in range(0, limit, count))
            assert all(block & used or max(block) >= limit for block in free)
            continue
        assert first % count == 0 and first + count <= limit
        for other, length in taken.items():
            assert first + count <= other or other + length <= first
        taken[first] = count


def test_group_numbers_are_reused() -> None:
    def program(long_lived: Communicator) -> None:
        for _ in range(40):
            Communicator(_core.LocalStore(), 0, 1, BOUND, "short", executor(long_lived.rank))
        all_reduce(long_lived)

    results_of(run_ranks("ab", program))


@pytest.mark.parametrize("peer", [-1, 0, 2])
def test_messages_to_impossible_peers_are_rejected(peer: int) -> None:
    def program(communicator: Communicator) -> None:
        if communicator.rank == 0:
            with pytest.raises(_core.InvalidArgumentError, match="expected a rank from 0 to 1"):
                communicator.send(np.zeros(1), Dtype.float64, peer)
        all_reduce(communicator)

    results_of(run_ranks("aa", program))


@pytest.mark.parametrize("hosts", ["ab", "aa"])
def test_a_group_follows_one_with_one_way_messages(hosts: str) -> None:
    """A transport must not apply the state of an earlier group to the next group."""

    def one_way(communicator: Communicator) -> None:
        data = bytearray(8)
        if communicator.rank == 0:
            communicator.recv(data, Dtype.uint8, 1).wait()
        else:
            communicator.send(data, Dtype.uint8, 0).wait()

    def both_ways(communicator: Communicator) -> None:
        peer = 1 - communicator.rank
        for size in (8, 500_000):
            got, data = bytearray(size), bytes([communicator.rank + 1]) * size
            receiving = communicator.recv(got, Dtype.uint8, peer)
            communicator.send(data, Dtype.uint8, peer).wait()
            receiving.wait()
            assert got == bytes([peer + 1]) * size

    for _ in range(3):
        results_of(run_ranks(hosts, one_way))
        results_of(run_ranks(hosts, both_ways))
