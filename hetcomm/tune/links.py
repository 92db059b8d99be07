"""How long messages between hosts take, and how fast the links are.

Hosts meet in pairs, so that a slow link shows only where it is. Small all_reduces of all their
ranks tell what a message takes among ranks that also wait for their island. Then as many ranks of
one host as of the other exchange blocks, two and two, all at once, which fills both directions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hetcomm.bench.case import case_of
from hetcomm.bench.hetcomm_backend import HetcommBackend
from hetcomm.bench.measure import Effort, measure
from hetcomm.bench.meeting import Meeting
from hetcomm.communicator import Communicator
from hetcomm.rendezvous import PrefixStore
from hetcomm.timing import seconds_of
from hetcomm.tune.profile import Measured

MOST_ROUNDS = 7  # of pairs: each host has then met seven others
LARGEST = 64 << 10  # bytes of an all_reduce; beyond that the bandwidth says it
OWN = tuple(LARGEST << power for power in range(0, 11, 2))  # where those asked for do not suffice
BULK, BULK_SECONDS, MOST_CALLS = 4 << 20, 0.4, 200  # blocks that fill a link, and for how long
SMALL, ACCUSTOMED, LONGER = 64 << 10, 100, 4


def accustomed(effort: Effort, size: int) -> Effort:
    """Waiting ranks spin as long as that has helped lately: of short calls many come first."""
    return effort if size > SMALL else Effort(**(vars(effort) | {"warmup": ACCUSTOMED}))


def longer(effort: Effort) -> Effort:
    """Sleeping ranks are woken early or late for tenths of a second on end."""
    return Effort(**(vars(effort) | {"seconds": LONGER * effort.seconds}))


def part_of(meeting: Meeting, name: str, ranks: Sequence[int]) -> Meeting:
    """Where these ranks talk, in this order, of which this is one."""
    store = PrefixStore(meeting.store, f"{name}/")
    return Meeting(store, ranks.index(meeting.rank), len(ranks), meeting.timeout)


def rounds_of(hosts: int) -> list[list[tuple[int, int]]]:
    """Pairs of hosts, none twice in a round, so that in the end each has met every other."""
    around = [*range(hosts), *[-1] * (hosts % 2)]
    rounds = []
    for _ in range(len(around) - 1):
        pairs = zip(around[: len(around) // 2], reversed(around), strict=False)
        rounds.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        around = [around[0], around[-1], *around[1:-1]]
    return rounds


def sizes_of(measured: Measured, ranks: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Of the all_reduces of these ranks: those up to LARGEST, and if their messages are all alike,
    of which no curve can be made, some more."""
    found = {size for size in sizes if size <= LARGEST}
    sent = {measured.sent(ranks, size) for size in found}
    for size in (4 * len(ranks), *OWN):
        if len(sent) > 1:
            break
        found.add(size)
        sent.add(measured.sent(ranks, size))
    return sorted(found)


def measure_links(
    meeting: Meeting,
    measured: Measured,
    pairs: Sequence[tuple[int, int]],
    name: str,
    sizes: Sequence[int],
    effort: Effort,
) -> None:
    """Measures the pairs of one round, all at once. name: is unique to the round."""
    if not pairs:
        return
    hosts = measured.topology.hosts
    twos = [list(zip(hosts[a], hosts[b], strict=False)) for a, b in pairs]
    everybody = [sorted(hosts[a] + hosts[b]) for a, b in pairs]

    def small() -> list[tuple[int, float]]:
        ranks = next((ranks for ranks in everybody if meeting.rank in ranks), None)
        if ranks is None:
            return []
        part = part_of(meeting, f"{name}/small/{ranks[0]}", ranks)
        backend = HetcommBackend("hetcomm", "", part, "")
        found = []
        for size in sizes_of(measured, ranks, sizes):
            case = case_of("all_reduce", size, part.size)
            row = measure(part, [backend], case, longer(accustomed(effort, size)))[0]
            found.append((row.case.bytes, row.median))
        backend.close()
        return found

    all_reduces = meeting.together(small)
    mine = next((two for each in twos for two in each if meeting.rank in two), None)
    part = None if mine is None else part_of(meeting, f"{name}/{mine[0]}", mine)
    seconds, calls = _bulk(meeting, part)
    for ranks, of_pair in zip(everybody, twos, strict=True):
        longest = max(seconds[rank] for two in of_pair for rank in two)
        bandwidth = len(of_pair) * calls * BULK / longest
        measured.link(ranks, bandwidth, all_reduces[ranks[0]])


def _bulk(meeting: Meeting, part: Meeting | None) -> tuple[list[float], int]:
    """Seconds of each rank for so many calls that exchange blocks of BULK, all begun at once."""
    comm: Communicator | None = None  # of two
    source, target = np.ones(BULK, np.uint8), np.zeros(2 * BULK, np.uint8)

    def open_it() -> None:
        nonlocal comm
        if part is not None:
            store = part.part("bulk")
            comm = Communicator(store, part.rank, part.size, timeout=part.timeout, name="bulk")

    def take(calls: int) -> float:
        return 0.0 if comm is None else seconds_of(lambda: comm.all_gather(source, target), calls)

    meeting.together(open_it)
    first = max(meeting.together(lambda: take(1)))
    calls = min(max(math.ceil(BULK_SECONDS / first), 2), MOST_CALLS)
    seconds = meeting.together(lambda: take(calls))
    if comm is not None:
        comm.close()
    return seconds, calls
