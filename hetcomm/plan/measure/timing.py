"""Seconds of consecutive parts of work on a device, repeated until they agree."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

FEWEST, USUAL, MOST = 3, 7, 200  # repetitions: if slow, until the spread counts, at most
SPREAD = 0.03  # of the middle half of all repetitions, relative to the median
WARMUP = 0.1  # share of the time
QUEUED = 4  # repetitions that a GPU gets at once, so its queue hides launches as training does


class Clock:
    """Times of a device's work, from one thread. On a GPU, the time between events in its stream.

    A host that computes with one thread: the thread's processor time, which other work on the
    machine changes least. With more threads: the time that passes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._on_host = device.type == "cpu"
        self.queued = 1 if self._on_host else QUEUED
        self._now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def mark(self) -> Any:
        if self._on_host:
            return self._now()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def any(self, wish: bool) -> bool:
        """Whether one of the ranks that measure together has this wish."""
        return wish

    def same(self, value: Any) -> Any:
        """The first of these ranks' value, on all of them."""
        return value

    def finish(self) -> None:
        if not self._on_host:
            torch.cuda.synchronize(self.device)

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks; after finish()."""
        return float(end - start if self._on_host else start.elapsed_time(end) * 1e-3)


def repeat(
    clock: Clock, parts: Sequence[Callable[[], object]], bound: float
) -> list[tuple[float, ...]]:
    """Seconds of each part in each repetition of all parts. bound: seconds, for FEWEST repetitions
    or more."""
    end = time.perf_counter() + bound
    warm = time.perf_counter() + WARMUP * bound
    while True:
        for part in parts:
            part()
        clock.finish()
        if not clock.any(time.perf_counter() < warm):
            break
    found: list[tuple[float, ...]] = []

    def more() -> bool:
        wanted = len(found) < MOST and time.perf_counter() < end and not _agree(found)
        return len(found) < FEWEST or wanted

    while clock.any(more()):
        marks = []
        for _ in range(clock.queued):
            of_parts = [clock.mark()]
            for part in parts:
                part()
                of_parts.append(clock.mark())
            marks.append(of_parts)
        clock.finish()
        for each in marks:
            found.append(tuple(clock.seconds(*pair) for pair in pairwise(each)))
    return found


def _agree(found: Sequence[tuple[float, ...]]) -> bool:
    if len(found) < USUAL:
        return False
    for seconds in zip(*found, strict=True):
        low, middle, high = statistics.quantiles(seconds, n=4)
        if high - low > SPREAD * middle:
            return False
    return True


def medians(clock: Clock, parts: Sequence[Callable[[], object]], bound: float) -> tuple[float, ...]:
    """The median seconds of each part.

    Medians, because a step adds up many passes: the fastest pass is rare, and a disturbed one too.
    """
    return tuple(map(statistics.median, zip(*repeat(clock, parts, bound), strict=True)))


def throughput(clock: Clock, parts: Sequence[Callable[[], object]], seconds: float) -> float:
    """Repetitions of all parts in a second, over so many seconds in a row.

    They begin half as many seconds earlier and end as much later, so ranks that start at about the
    same time count only what they do at once.
    """
    start = time.perf_counter()
    ends = [start]
    while len(ends) == 1 or ends[-1] < start + 2 * seconds:
        for part in parts:
            part()
        clock.finish()
        ends.append(time.perf_counter())
    inside = [end for end in ends if seconds / 2 <= end - start <= 3 * seconds / 2]
    if len(inside) < 2:
        return (len(ends) - 1) / (ends[-1] - start)
    return (len(inside) - 1) / (inside[-1] - inside[0])


def fastest(clock: Clock, part: Callable[[], object], bound: float) -> float:
    """The least seconds of a part, for what a device does at most."""
    return min(seconds for (seconds,) in repeat(clock, (part,), bound))
