"""Where the time of a call goes, as far as it shows from outside: for any backend.

Who came last and how long the others waited, and what went through the hosts' NICs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hetcomm import _core
from hetcomm.bench.backends import Backend, Operation
from hetcomm.bench.meeting import Meeting

SECONDS, FEWEST, MOST = 0.05, 3, 32  # that calls may take, and how many there are


@dataclass(frozen=True)
class Legs:
    """Of calls one after another. waits: mean seconds by rank, from its own call to the last one's;
    last: in which share of the calls a rank came last; both None where the ranks' clocks differ.
    bridge_bytes: that one call sends from the host that sends most; inside: what Backend.inside()
    says on each rank."""

    waits: list[float] | None
    last: list[float] | None
    bridge_bytes: int
    inside: list[dict[str, float] | None]

    def longest(self, leg: str) -> float | None:
        """Seconds of a leg on the rank that is longest in it."""
        told = [of_rank.get(leg, 0.0) for of_rank in self.inside if of_rank is not None]
        return max(told, default=None)

    @property
    def waited_for(self) -> int | None:
        """The rank that came last most often."""
        return None if self.last is None else max(range(len(self.last)), key=self.last.__getitem__)


def look(meeting: Meeting, backend: Backend, operation: Operation, seconds: float) -> Legs:
    """seconds: what a call takes, about."""
    call, end = operation.call, backend.barrier
    calls = min(max(int(SECONDS / seconds), FEWEST), MOST)
    began = time.perf_counter()
    meeting.gather(None)
    end()
    before, arrivals = sent_bytes(), []
    for _ in range(calls):
        arrivals.append(time.perf_counter())
        call()
    if operation.finish is not None:
        operation.finish()
    end()
    sent = sent_bytes() - before
    told = [began, arrivals, sent, _core.probe_rank().host]
    everything = meeting.gather(told)
    sent = max(of_rank[2] for of_rank in everything)
    hosts = {of_rank[3] for of_rank in everything}
    waits, last = _waits([of_rank[:2] for of_rank in everything])
    inside = meeting.gather(backend.inside(operation, seconds))
    return Legs(waits, last, sent // calls if len(hosts) > 1 else 0, inside)


def _waits(
    ranks: list[tuple[float, list[float]]],
) -> tuple[list[float] | None, list[float] | None]:
    """Of (when it began to meet the others, when each call began) of each rank."""
    # All began to meet before any had met: what clocks of different machines contradict.
    if max(began for began, _ in ranks) > min(arrivals[0] for _, arrivals in ranks):
        return None, None
    calls = list(zip(*(arrivals for _, arrivals in ranks), strict=True))
    waits, last = [0.0] * len(ranks), [0.0] * len(ranks)
    for arrived in calls:
        latest = max(arrived)
        last[arrived.index(latest)] += 1 / len(calls)
        for rank, moment in enumerate(arrived):
            waits[rank] += (latest - moment) / len(calls)
    return waits, last


def sent_bytes() -> int:
    """What the NICs of this host have sent so far, loopback apart."""
    total = 0
    for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            total += int(counters.split()[8])
    return total
