"""The measurement. Backends take turns within one run, so all meet the same disturbances.

Every rank runs the same code. Ranks agree on the time of a call, which gives the calls of a sample.
A turn begins with a barrier of its backend. No barrier is timed.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from hetcomm import _core
from hetcomm.bench.backends import Backend
from hetcomm.bench.case import Case
from hetcomm.bench.check import Outcome, compare, fill_input
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.error import BenchError
from hetcomm.bench.gap import Gap, Spender, since_last_began
from hetcomm.bench.inputs import Inputs
from hetcomm.bench.legs import measure_legs
from hetcomm.bench.row import Row
from hetcomm.bench.tolerance import tolerance_of
from hetcomm.bench.values import ELEMENTS, Array
from hetcomm.timing import seconds_of

SHORTEST_SAMPLE = 100e-6  # seconds; reading the clock is then less than a thousandth
MOST_CALLS, MOST_SAMPLES = 4096, 1000
PROBES = 3  # of the time of a call; the best counts, because a busy machine disturbs single ones
FEWEST_TURNS, OVERTIME = 3, 2  # a case ends early after so many turns and times its seconds
LONG_CALL = 0.1  # seconds; longer calls have few untimed ones
# Each call longer than these seconds begins at a barrier. Otherwise a rank that is done early, as
# ranks that share a NIC are in turn, would wait for other ranks in its next call: a reduce_scatter
# of 68 ms appeared as one of 86.
APART = 2e-3
RANDOM = Inputs()


@dataclass(frozen=True)
class Effort:
    """How long and how to measure each case.

    seconds: of timed calls for each backend and case. iterations: number of calls instead. warmup:
    untimed first calls. turns: of each backend, if time allows. check: compares results. legs: also
    measures where the time goes. gap: before each timed call.
    """

    seconds: float = 0.3
    iterations: int | None = None
    warmup: int = 5
    turns: int = 7
    check: bool = True
    legs: bool = False
    gap: Gap = field(default_factory=Gap)


@dataclass(frozen=True)
class Schedule:
    """One turn of a backend: `lead` untimed calls, then samples of `calls` calls.

    apart: each sample begins at a barrier. isolated: a sample is one call after barrier and gap.
    """

    calls: int
    samples: int
    turns: int
    lead: int
    apart: bool = False
    isolated: bool = False


def schedule_of(seconds: float, effort: Effort, whole: bool = False) -> Schedule:
    """seconds: time of a call. whole: a turn is one sample, from barrier to end."""
    gap = effort.gap.seconds
    calls = 1 if gap else min(max(math.ceil(SHORTEST_SAMPLE / seconds), 1), MOST_CALLS)
    if effort.iterations is not None:
        calls = min(calls, effort.iterations)
        samples = math.ceil(effort.iterations / calls)
    else:
        affordable = int(effort.seconds / (seconds * calls + gap))
        samples = min(max(affordable, effort.turns, 3), MOST_SAMPLES)
    turns = min(effort.turns, samples)
    lead = 0 if seconds > LONG_CALL else 1 if seconds > SHORTEST_SAMPLE else min(calls, 20)
    in_turn = math.ceil(samples / turns)
    if gap:
        return Schedule(1, in_turn, turns, lead=0, isolated=True)
    if whole:
        return Schedule(calls * in_turn, 1, turns, lead=0)
    return Schedule(calls, in_turn, turns, lead, apart=seconds > APART)


def measure(
    control: ControlChannel,
    backends: Sequence[Backend],
    case: Case,
    effort: Effort,
    inputs: Inputs = RANDOM,
    keep_alive: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Returns a row for each backend, equal on all ranks.

    inputs: the elements of all ranks. keep_alive: called now and then, as a sign of life.
    Raises InvalidArgumentError if a backend lacks the case, BenchError for a wrong result or a
    failing backend.
    """
    given, got = _buffers(case, control.rank)
    spender = Spender(effort.gap)
    measured = [_Measured(control, each, case, given, got, inputs, spender) for each in backends]
    schedules = []
    for one in measured:
        schedules.append(one.begin(effort))
        keep_alive()
    rows: list[Row | None] = [None] * len(measured)
    left = [effort.seconds * OVERTIME if effort.iterations is None else math.inf] * len(measured)
    for turn in range(max(schedule.turns for schedule in schedules)):
        for index, (one, schedule) in enumerate(zip(measured, schedules, strict=True)):
            if rows[index] is not None:
                continue
            left[index] -= one.turn(schedule)
            keep_alive()
            if turn + 1 == schedule.turns or (turn + 1 >= FEWEST_TURNS and left[index] < 0):
                rows[index] = one.row(schedule, effort)
    return [row for row in rows if row is not None]


class _Measured:
    """One backend and one case, on buffers shared by all backends."""

    def __init__(
        self,
        control: ControlChannel,
        backend: Backend,
        case: Case,
        given: Array,
        got: Array,
        inputs: Inputs,
        spender: Spender,
    ) -> None:
        self._control, self._backend, self._case, self._inputs = control, backend, case, inputs
        self._error: float | None = None
        self._given, self._got, self._spender = given, got, spender
        self._by_rank: list[list[float]] = [[] for _ in range(control.size)]
        self._run_on_all(self._prepare)

    def _prepare(self) -> None:
        self._operation = self._backend.prepare(self._case, self._given, self._got)

    def begin(self, effort: Effort) -> Schedule:
        """Makes the first calls: checks one, and measures the time of one."""
        self._got.view(np.uint8)[:] = 0xA5  # never a correct result
        if effort.check:
            fill_input(self._case, self._control.rank, self._inputs, self._given)
        else:
            self._given[:] = 1  # unwritten pages are not in memory
        self._operation.load()
        long = max(self._run_on_all(lambda: self._run(1))) > LONG_CALL
        if effort.check:
            self._check()
        if self._case.in_place and self._case.kind.reduces:
            self._given[:] = 0  # a growing sum would soon be infinite
            self._operation.load()
        self._run_on_all(lambda: self._run(min(effort.warmup, 1) if long else effort.warmup))
        calls = 1
        while True:
            tries = self._samples(Schedule(calls, 1 if long else PROBES, 1, lead=0))
            taken = min(max(ranks) for ranks in zip(*tries, strict=True))
            if taken > SHORTEST_SAMPLE or calls >= MOST_CALLS:
                # Ranks that only send run ahead. Data under way at the start or end of a sample
                # would be counted wrongly.
                return schedule_of(taken / calls, effort, whole=self._case.kind.rooted)
            calls *= 4

    def turn(self, schedule: Schedule) -> float:
        """Returns the seconds of the slowest rank."""
        everything = self._samples(schedule)
        legs = schedule.calls * (2 if self._case.collective == "ping_pong" else 1)
        for of_all, mine in zip(self._by_rank, everything, strict=True):
            of_all += [seconds / legs for seconds in mine]
        return max(map(sum, everything))

    def row(self, schedule: Schedule, effort: Effort) -> Row:
        """Called after all turns."""
        if effort.check and not self._case.in_place:
            self._check()  # the last result: the input is unchanged
        samples = [max(sample) for sample in zip(*self._by_rank, strict=True)]
        legs = None
        if effort.legs:
            with self._backend.calling():
                legs = measure_legs(
                    self._control, self._backend, self._case, self._operation, median(samples)
                )
        return Row(
            self._backend.name,
            self._backend.library,
            self._case,
            schedule.calls,
            samples,
            [median(own) for own in self._by_rank],
            effort.check,
            self._backend.predicted(self._case),
            legs,
            self._backend.codec,
            self._error,
        )

    def _samples(self, schedule: Schedule) -> list[list[float]]:
        """Seconds of each sample of a turn, by rank."""
        if schedule.isolated:
            return since_last_began(self._run_on_all(lambda: self._spans(schedule.samples)))

        def take() -> list[float]:
            self._backend.barrier()
            with _no_collection():
                self._run(schedule.lead)
                return [sample(number) for number in range(schedule.samples)]

        def sample(number: int) -> float:
            if schedule.apart and (number or schedule.lead):
                self._backend.barrier()
            return self._run(schedule.calls)

        return self._run_on_all(take)

    def _spans(self, calls: int) -> list[tuple[float, float]]:
        """Start and end of each call on this rank. A barrier before each gap lets ranks call at
        about the same time."""
        found = []
        with _no_collection():
            for _ in range(calls):
                self._backend.barrier()
                self._spender.spend()
                began = time.perf_counter()
                taken = self._run(1)
                found.append((began, began + taken))
        return found

    def _run(self, calls: int) -> float:
        with self._backend.calling():
            return seconds_of(self._operation.call, calls, self._operation.finish)

    def _check(self) -> None:
        self._operation.read()
        case, rank = self._case, self._control.rank
        tolerance = tolerance_of(self._backend.codec)
        mine = compare(case, rank, self._inputs, self._got, tolerance)
        found = [Outcome(**each) for each in self._control.gather(asdict(mine))]
        for rank, each in enumerate(found):
            if each.wrong:
                raise BenchError(
                    f"{self._backend.name} gives a wrong result for {case.describe()}: "
                    f"on rank {rank} {each.wrong}"
                )
        norm = sum(each.norm for each in found)
        self._error = math.sqrt(sum(each.difference for each in found) / norm) if norm else None

    def _run_on_all(self, action: Callable[[], Any]) -> list[Any]:
        """Runs an action of a backend on all ranks. Returns each rank's result."""

        def act() -> Any:
            try:
                return action()
            except Exception as error:  # foreign backends raise anything
                why = (str(error).splitlines() or [""])[0]
                if isinstance(error, _core.InvalidArgumentError):
                    raise self._backend.refuse(self._case, why) from error
                raise BenchError(
                    f"{self._backend.name} fails in {self._case.describe()}: "
                    f"{type(error).__name__}: {why}"
                ) from error

        return self._control.run_on_all(act)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disables Python's garbage collector, which would stop the rank for a moment."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _buffers(case: Case, rank: int) -> tuple[Array, Array]:
    """Input and output of this rank. In place, the input is the output or part of it."""
    given, got = (blocks * case.count for blocks in case.blocks(rank))
    if not case.in_place:
        return _aligned(case, given), _aligned(case, got)
    whole = _aligned(case, max(given, got))
    if given < got:
        return whole[rank * case.count :][:given], whole
    return whole, whole


def _aligned(case: Case, count: int) -> Array:
    """Zeros that begin at a page, as buffers of this size usually do."""
    element = ELEMENTS[case.dtype]
    page = os.sysconf("SC_PAGE_SIZE")
    raw = np.zeros(count * element.size + page, np.uint8)
    start = -raw.ctypes.data % page
    return raw[start : start + count * element.size].view(element.kept)
