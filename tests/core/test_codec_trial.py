"""Ranks measure what an automatic codec does, and stop encoding at the same call."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from communicators import BOUND, Call, results_of, run_ranks
from slow_networks import profile

from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec

SEED = random.SystemRandom().randrange(2**31)
SLOW = 100_000  # bytes per second, so that any busy processor is faster than the network
COUNT = 100_000
SUM = Spec(Collective.all_reduce, Dtype.float32, ReduceOp.sum, count=COUNT)
MAXIMUM = Spec(Collective.all_reduce, Dtype.float32, ReduceOp.max, count=COUNT)

Make = Callable[[int, int, int], np.ndarray]
Slow = Callable[..., None]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slow:
    """Makes the network between these hosts slow, for the cost model."""

    def make(hosts: str, codec: str = "auto") -> None:
        topology = results_of(run_ranks(hosts, lambda communicator: communicator.topology))[0]
        file = tmp_path / "profile"
        file.write_text(profile(topology, SLOW))
        monkeypatch.setenv("HETCOMM_PROFILE", str(file))
        monkeypatch.setenv("HETCOMM_BRIDGE_CODEC", codec)

    return make


def random_bits(seed: int, rank: int, count: int) -> np.ndarray:
    """Finite numbers with random exponents, which the codec does not make shorter."""
    bits = np.random.default_rng([seed, rank]).integers(0, 1 << 32, count, np.uint32)
    return (bits & 0xBFFFFFFF).view(np.float32)


def gradients(seed: int, rank: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, rank]).standard_normal(count, np.float32)


class Traced:
    """An all_reduce or a broadcast of one rank, submitted by the constructor."""

    def __init__(
        self, communicator: Communicator, spec: Spec, make: Make, seed: int, will_wait: bool
    ) -> None:
        self.communicator, self.spec, self.make, self.seed = communicator, spec, make, seed
        own = make(
            seed, communicator.rank, spec.buffer_counts(communicator.rank, communicator.size)[0]
        )
        self.output = np.zeros(spec.count, np.float32)
        self.work = communicator.submit(spec, own, self.output, will_wait)

    def expected(self) -> np.ndarray:
        inputs = [
            self.make(self.seed, rank, self.spec.count) for rank in range(self.communicator.size)
        ]
        if self.spec.collective == Collective.broadcast:
            return inputs[self.spec.root]
        add = np.add if self.spec.op == ReduceOp.sum else np.maximum

        def total(values: Sequence[np.ndarray]) -> np.ndarray:
            found = values[0]
            for value in values[1:]:
                found = add(found, value)
            return found

        islands = self.communicator.topology.islands
        return total([total([inputs[rank] for rank in ranks]) for ranks in islands])

    def check(self) -> bool:
        """Asserts that every bit is right; whether this rank has encoded or decoded."""
        self.work.wait()
        assert self.output.tobytes() == self.expected().tobytes(), f"{self.spec}, seed {self.seed}"
        return any(span.kind in ("encode", "decode") for span in self.work.trace.spans)


def encoded_calls(found: Sequence[Sequence[bool]]) -> list[int]:
    """The numbers of the encoded calls, from 1. All ranks encode the same calls."""
    assert all(calls == found[0] for calls in found), found
    return [number for number, encoded in enumerate(found[0], 1) if encoded]


def one_by_one(communicator: Communicator, spec: Spec, make: Make, calls: int) -> list[bool]:
    communicator.begin_trace()
    found = [Traced(communicator, spec, make, SEED + n, True).check() for n in range(calls)]
    communicator.end_trace()
    return found


@pytest.mark.parametrize(
    ("hosts", "spec"), [("ab", SUM), ("aabb", SUM), ("abab", SUM), ("abcdefg", MAXIMUM)]
)
def test_data_that_do_not_shrink_are_no_longer_encoded(slow: Slow, hosts: str, spec: Spec) -> None:
    slow(hosts)
    stopped = run_ranks(hosts, lambda each: one_by_one(each, spec, random_bits, 12))
    assert encoded_calls(results_of(stopped)) == list(range(1, 8))
    kept = run_ranks(hosts, lambda each: one_by_one(each, spec, gradients, 12))
    assert encoded_calls(results_of(kept)) == list(range(1, 13))


def test_data_may_cease_to_shrink_later(slow: Slow) -> None:
    slow("ab")

    def program(communicator: Communicator) -> list[bool]:
        first = one_by_one(communicator, SUM, gradients, 5)
        return first + one_by_one(communicator, SUM, random_bits, 65)

    assert encoded_calls(results_of(run_ranks("ab", program))) == list(range(1, 64))


def test_a_named_codec_is_never_corrected(slow: Slow) -> None:
    slow("ab", "lossless")
    found = run_ranks("ab", lambda each: one_by_one(each, SUM, random_bits, 12))
    assert encoded_calls(results_of(found)) == list(range(1, 13))


def test_another_size_and_a_new_group_begin_anew(slow: Slow) -> None:
    slow("ab")
    larger = Spec(Collective.all_reduce, Dtype.float32, ReduceOp.sum, count=4 * COUNT)

    def program(communicator: Communicator) -> list[bool]:
        one_by_one(communicator, SUM, random_bits, 12)
        return one_by_one(communicator, larger, random_bits, 9)

    for _ in range(2):
        assert encoded_calls(results_of(run_ranks("ab", program))) == list(range(1, 8))


@pytest.mark.parametrize("hosts", ["ab", "aabb"])
def test_calls_in_flight_stop_at_the_same_call(slow: Slow, hosts: str) -> None:
    slow(hosts)

    def program(communicator: Communicator) -> list[bool]:
        first = one_by_one(communicator, SUM, random_bits, 3)
        communicator.begin_trace()
        many = [Traced(communicator, SUM, random_bits, n, False) for n in range(60)]
        order = random.Random(communicator.rank).sample(range(60), 60)
        found = {n: many[n].check() for n in order}
        communicator.end_trace()
        return first + [found[n] for n in range(60)]

    assert encoded_calls(results_of(run_ranks(hosts, program))) == list(range(1, 8))


def test_ranks_encode_the_same_calls_of_mixed_classes(slow: Slow) -> None:
    """Sizes, collectives and roots are mixed, and most calls are asynchronous."""
    slow("abc")
    rng = random.Random(SEED)
    specs = [
        Spec(
            rng.choice([Collective.all_reduce, Collective.broadcast]),
            Dtype.float32,
            ReduceOp.max,
            root=rng.randrange(3),
            count=rng.choice([100, COUNT // 3, COUNT, 3 * COUNT]),
        )
        for _ in range(80)
    ]
    makes = [rng.choice([random_bits, random_bits, gradients]) for _ in specs]

    def program(communicator: Communicator) -> list[bool]:
        communicator.begin_trace()
        found, waiting = [], list[Traced]()
        own = random.Random(communicator.rank)
        for number, (spec, make) in enumerate(zip(specs, makes, strict=True)):
            waiting.append(Traced(communicator, spec, make, SEED + number, False))
            if own.random() < 0.3:
                found += [each.check() for each in waiting]
                waiting.clear()
        found += [each.check() for each in waiting]
        communicator.end_trace()
        return found

    encoded = encoded_calls(results_of(run_ranks("abc", program)))
    assert encoded, f"seed {SEED}"


def test_a_late_rank_delays_no_submission(slow: Slow) -> None:
    """A rank submits many calls at once, long before another one makes its first."""
    slow("ab")
    submitted = threading.Event()

    def program(communicator: Communicator) -> list[bool]:
        if communicator.rank == 1:
            assert submitted.wait(BOUND)
        communicator.begin_trace()
        many = [Traced(communicator, SUM, random_bits, n, False) for n in range(70)]
        submitted.set()
        found = [each.check() for each in many]
        communicator.end_trace()
        return found

    found = encoded_calls(results_of(run_ranks("ab", program)))
    assert found in (list(range(1, 8)), list(range(1, 64)), list(range(1, 71)))


def test_a_call_that_waits_for_a_rank_that_left_fails_soon(slow: Slow) -> None:
    slow("ab")
    left = threading.Event()

    def program(communicator: Communicator) -> str:
        one_by_one(communicator, SUM, random_bits, 3)
        if communicator.rank == 1:
            communicator.leave()
            left.set()
            return ""
        assert left.wait(BOUND)
        many = [communicator.submit(SUM, *np.zeros((2, COUNT), np.float32)) for _ in range(9)]
        begin = time.monotonic()
        with pytest.raises(Exception, match="rank 1 has left the group after 3 collectives"):
            many[-1].wait()
        assert time.monotonic() - begin < 10
        return ""

    results_of(run_ranks("ab", program))


def test_calls_that_encode_nothing_are_not_counted(slow: Slow) -> None:
    slow("ab")
    short = Spec(Collective.all_reduce, Dtype.float32, count=8)

    def program(communicator: Communicator) -> list[bool]:
        for number in range(20):
            Call(communicator, short, number, True).check()
        return one_by_one(communicator, SUM, random_bits, 9)

    assert encoded_calls(results_of(run_ranks("ab", program))) == list(range(1, 8))
