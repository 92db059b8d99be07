"""The time of a call by leg, for any backend.

Measured from outside: the last rank to call, the waits of other ranks, and the bytes through the
hosts' NICs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hetcomm import _core
from hetcomm.bench.backends import Backend, Operation
from hetcomm.bench.case import Case
from hetcomm.bench.control import ControlChannel

SECONDS, FEWEST, MOST = 0.05, 3, 32  # bounds on time and number of calls


@dataclass(frozen=True)
class Legs:
    """Of consecutive calls. waits: mean seconds by rank, from its call to that of the last rank.
    last: by rank, the share of calls in which it came last. Both are None if clocks differ.
    bridge_bytes: of one call, from the host that sends most. inside, expected: measured and
    predicted legs of each rank, see Backend.trace_legs()."""

    waits: list[float] | None
    last: list[float] | None
    bridge_bytes: int
    inside: list[dict[str, float]] | None = None
    expected: list[dict[str, float]] | None = None

    @property
    def waited_for(self) -> int | None:
        """The rank with the largest share of last calls."""
        return None if self.last is None else max(range(len(self.last)), key=self.last.__getitem__)


class ShownLeg(NamedTuple):
    """Seconds of a leg on the rank with the longest one, and the longest prediction."""

    name: str
    rank: int
    measured: float
    predicted: float


def shown_legs(legs: Legs | None) -> list[ShownLeg]:
    """The total first, waits last. A rank's waits are one sum, with its most awaited rank."""
    if legs is None or legs.inside is None or legs.expected is None:
        return []
    shown = []
    for name in ("total", "island", "staging", "bridge", "between"):
        found = [of_rank.get(name, 0.0) for of_rank in legs.inside]
        predicted = max(of_rank.get(name, 0.0) for of_rank in legs.expected)
        if max(found) or predicted:
            shown.append(ShownLeg(name, found.index(max(found)), max(found), predicted))
    waits = [sum(waits_of(of_rank).values()) for of_rank in legs.inside]
    predicted = max(sum(waits_of(of_rank).values()) for of_rank in legs.expected)
    if max(waits) or predicted:
        rank = waits.index(max(waits))
        of_longest = waits_of(legs.inside[rank])
        peer = max(of_longest, key=of_longest.__getitem__, default=None)
        name = "waits" if peer is None else f"waits, mostly for {peer}"
        shown.append(ShownLeg(name, rank, max(waits), predicted))
    return shown


def waits_of(legs: dict[str, float]) -> dict[int, float]:
    """Seconds by awaited rank."""
    return {int(name[4:]): time for name, time in legs.items() if name.startswith("for ")}


def measure_legs(
    control: ControlChannel, backend: Backend, case: Case, operation: Operation, seconds: float
) -> Legs:
    """seconds: approximate time of a call."""
    call, end = operation.call, backend.barrier
    calls = min(max(int(SECONDS / seconds), FEWEST), MOST)
    began = time.perf_counter()
    control.gather(None)
    end()
    before, arrivals = sent_bytes(), []
    for _ in range(calls):
        arrivals.append(time.perf_counter())
        call()
    if operation.finish is not None:
        operation.finish()
    end()
    sent = sent_bytes() - before
    mine = [began, arrivals, sent, _core.probe_rank().host]
    everything = control.gather(mine)
    sent = max(of_rank[2] for of_rank in everything)
    hosts = {of_rank[3] for of_rank in everything}
    waits, last = _waits([of_rank[:2] for of_rank in everything])
    looked = control.gather(backend.trace_legs(case, operation, seconds))
    inside, expected = (
        [each[i] for each in looked] if None not in looked else None for i in (0, 1)
    )
    return Legs(waits, last, sent // calls if len(hosts) > 1 else 0, inside, expected)


def _waits(
    ranks: list[tuple[float, list[float]]],
) -> tuple[list[float] | None, list[float] | None]:
    """ranks: by rank, the start of its clock check and the start of each call."""
    if not one_clock([(began, arrivals[0]) for began, arrivals in ranks]):
        return None, None
    calls = list(zip(*(arrivals for _, arrivals in ranks), strict=True))
    waits, last = [0.0] * len(ranks), [0.0] * len(ranks)
    for arrived in calls:
        latest = max(arrived)
        last[arrived.index(latest)] += 1 / len(calls)
        for rank, moment in enumerate(arrived):
            waits[rank] += (latest - moment) / len(calls)
    return waits, last


def one_clock(ranks: Sequence[tuple[float, float]]) -> bool:
    """Whether ranks share a clock. ranks: by rank, a time before and a time after one barrier. With
    one clock, every first time precedes every second time."""
    return max(began for began, _ in ranks) <= min(met for _, met in ranks)


def sent_bytes() -> int:
    """Bytes that the NICs of this host have sent so far, without the loopback."""
    total = 0
    for line in Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            total += int(counters.split()[8])
    return total
