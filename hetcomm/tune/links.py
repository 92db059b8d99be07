"""Latency of messages between hosts, and bandwidth of the links.

Hosts are measured in pairs, so a slow link affects its own pairs only. Small all_reduces of all
ranks of a pair give the time of a message, as part of a collective. Then pairs of ranks exchange
blocks, all at once, which fills both directions of the link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hetcomm.bench.case import case_of
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.hetcomm_backend import HetcommBackend
from hetcomm.bench.measure import Effort, measure
from hetcomm.communicator import Communicator
from hetcomm.rendezvous import PrefixStore
from hetcomm.timing import seconds_of
from hetcomm.tune.profile import Measured

MOST_ROUNDS = 7  # each host is then measured with seven other hosts
LARGEST = 64 << 10  # bytes of an all_reduce; beyond, bandwidth decides
OWN = tuple(LARGEST << power for power in range(0, 11, 2))  # added if too few are given
BULK, BULK_SECONDS, MOST_CALLS = 4 << 20, 0.4, 200  # bytes of a block, seconds, bound on calls
SMALL, LONG_WARMUP, MORE_SECONDS = 64 << 10, 100, 4


def with_long_warmup(effort: Effort, size: int) -> Effort:
    """More untimed calls for small sizes, during which ranks adapt how long they spin."""
    return effort if size > SMALL else replace(effort, warmup=LONG_WARMUP)


def with_more_seconds(effort: Effort) -> Effort:
    """A longer measurement, because wake-ups of ranks stay early or late for tenths of a second."""
    return replace(effort, seconds=MORE_SECONDS * effort.seconds)


def sub_channel(control: ControlChannel, name: str, ranks: Sequence[int]) -> ControlChannel:
    """The channel of these ranks, in this order. Called on each of these ranks."""
    store = PrefixStore(control.store, f"{name}/")
    return ControlChannel(store, ranks.index(control.rank), len(ranks), control.timeout)


def rounds_of(hosts: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs. Over all rounds every host is paired with every other host."""
    around = [*range(hosts), *[-1] * (hosts % 2)]
    rounds = []
    for _ in range(len(around) - 1):
        pairs = zip(around[: len(around) // 2], reversed(around), strict=False)
        rounds.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        around = [around[0], around[-1], *around[1:-1]]
    return rounds


def sizes_of(measured: Measured, ranks: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Sizes of the all_reduces of these ranks: those up to LARGEST. More are added if all messages
    have one size, because a curve needs two."""
    found = {size for size in sizes if size <= LARGEST}
    sent = {measured.sent(ranks, size) for size in found}
    for size in (4 * len(ranks), *OWN):
        if len(sent) > 1:
            break
        found.add(size)
        sent.add(measured.sent(ranks, size))
    return sorted(found)


def measure_links(
    control: ControlChannel,
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
    pairs_of_ranks = [list(zip(hosts[a], hosts[b], strict=False)) for a, b in pairs]
    ranks_of_pairs = [sorted(hosts[a] + hosts[b]) for a, b in pairs]

    def small() -> list[tuple[int, float]]:
        ranks = next((ranks for ranks in ranks_of_pairs if control.rank in ranks), None)
        if ranks is None:
            return []
        part = sub_channel(control, f"{name}/small/{ranks[0]}", ranks)
        backend = HetcommBackend("hetcomm", "", part, "")
        found = []
        for size in sizes_of(measured, ranks, sizes):
            case = case_of("all_reduce", size, part.size)
            longer = with_more_seconds(with_long_warmup(effort, size))
            (row,) = measure(part, [backend], case, longer)
            found.append((row.case.bytes, row.median))
        backend.close()
        return found

    all_reduces = control.run_on_all(small)
    mine = next((two for each in pairs_of_ranks for two in each if control.rank in two), None)
    part = None if mine is None else sub_channel(control, f"{name}/{mine[0]}", mine)
    seconds, calls = _exchange_blocks(control, part)
    for ranks, of_pair in zip(ranks_of_pairs, pairs_of_ranks, strict=True):
        longest = max(seconds[rank] for two in of_pair for rank in two)
        bandwidth = len(of_pair) * calls * BULK / longest
        measured.link(ranks, bandwidth, all_reduces[ranks[0]])


def _exchange_blocks(
    control: ControlChannel, part: ControlChannel | None
) -> tuple[list[float], int]:
    """Seconds of each rank for calls that exchange BULK bytes, and the number of calls."""
    comm: Communicator | None = None  # of two
    source, target = np.ones(BULK, np.uint8), np.zeros(2 * BULK, np.uint8)

    def connect() -> None:
        nonlocal comm
        if part is not None:
            store = part.part("bulk")
            comm = Communicator(store, part.rank, part.size, timeout=part.timeout, name="bulk")

    def take(calls: int) -> float:
        return 0.0 if comm is None else seconds_of(lambda: comm.all_gather(source, target), calls)

    control.run_on_all(connect)
    first = max(control.run_on_all(lambda: take(1)))
    calls = min(max(math.ceil(BULK_SECONDS / first), 2), MOST_CALLS)
    seconds = control.run_on_all(lambda: take(calls))
    if comm is not None:
        comm.close()
    return seconds, calls
