"""What the ranks of `hetcomm tune` measure together.

Islands are measured all at once, since they share processors where hosts are emulated ones and
nothing else; hosts in pairs, so that a slow link shows only where it is. As a program,
`python -m hetcomm.tune.measure FOLDER`, it is a rank that launch.py has started.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from hetcomm import _core
from hetcomm.bench.case import Case, case_of
from hetcomm.bench.hetcomm_backend import HetcommBackend
from hetcomm.bench.measure import measure
from hetcomm.bench.meeting import Meeting
from hetcomm.bench.memory import check_memory
from hetcomm.bench.rank import Tell, main
from hetcomm.bench.settings import Settings
from hetcomm.communicator import Communicator
from hetcomm.rendezvous import PrefixStore
from hetcomm.tune.profile import Measured

COLLECTIVES = tuple(each.name for each in _core.profiled_collectives())
LARGEST_MESSAGE = 64 << 10  # of the curve of messages; beyond that the bandwidth says it
BULK = 4 << 20  # bytes of a message that fills a link
MOST_ROUNDS = 7  # of pairs of hosts: each has then met seven others
COPIED, COPIES, CALLS = 16 << 20, 5, 2000


def run(settings: Settings, meeting: Meeting, tell: Tell) -> None:
    """Tells of each "case" that begins and, in the end, the text of the "profile"."""
    os.environ.pop("HETCOMM_PROFILE", None)  # what was measured before decides nothing here
    check_memory(meeting, settings.cases(meeting.size))
    topology = _topology(meeting)
    measured = Measured(topology)
    rounds = rounds_of(len(topology.hosts))[:MOST_ROUNDS]
    parts = len(settings.collectives) * len(settings.sizes) * any_island(topology)
    total = parts + len(rounds) + 1
    done = 0

    def next_is(what: str) -> None:
        nonlocal done
        tell({"case": what, "number": done, "of": total})
        done += 1

    next_is("memory")
    measured.memory(meeting.together(_memory), meeting.together(_step))
    if any_island(topology):
        _islands(settings, meeting, measured, next_is)
    for number, pairs in enumerate(rounds):
        next_is(f"links, round {number + 1}")
        _links(settings, meeting, measured, pairs, f"round/{number}")
    if meeting.rank == 0:
        tell({"profile": measured.text()})
    meeting.gather(None)
    meeting.leave()


def any_island(topology: _core.Topology) -> bool:
    return any(len(island) > 1 for island in topology.islands)


def rounds_of(hosts: int) -> list[list[tuple[int, int]]]:
    """Pairs of hosts, none twice in a round, so that in the end each has met every other."""
    around = [*range(hosts), *[-1] * (hosts % 2)]
    rounds = []
    for _ in range(len(around) - 1):
        pairs = zip(around[: len(around) // 2], reversed(around), strict=False)
        rounds.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        around = [around[0], around[-1], *around[1:-1]]
    return rounds


def _topology(meeting: Meeting) -> _core.Topology:
    store, timeout = meeting.part("topology"), meeting.timeout
    with Communicator(store, meeting.rank, meeting.size, timeout=timeout, name="tune") as world:
        if any(rank.memory != _core.Memory.host for rank in world.topology.ranks):
            raise _core.InvalidArgumentError(
                "hetcomm tune measures ranks in host memory, got some on devices; what native "
                "libraries do is not measured: unset HETCOMM_VENDOR"
            )
        return world.topology


def _part(meeting: Meeting, name: str, ranks: Sequence[int]) -> Meeting | None:
    """Where these ranks talk, in this order; None for others."""
    if meeting.rank not in ranks:
        return None
    store = PrefixStore(meeting.store, f"{name}/")
    return Meeting(store, ranks.index(meeting.rank), len(ranks), meeting.timeout)


def _islands(
    settings: Settings, meeting: Meeting, measured: Measured, next_is: Callable[[str], None]
) -> None:
    topology = measured.topology
    mine = topology.islands[topology.island_of(meeting.rank)]
    part = _part(meeting, f"island/{mine[0]}", mine) if len(mine) > 1 else None
    backend: HetcommBackend | None = None

    def open_island() -> None:
        nonlocal backend
        if part is not None:
            backend = HetcommBackend("hetcomm", "", part, "")

    def take(name: str, size: int) -> tuple[int, float] | None:
        if part is None or backend is None:
            return None
        row = measure(part, [backend], case_of(name, size, part.size), settings.effort)[0]
        return row.case.bytes, row.median

    meeting.together(open_island)
    for name in settings.collectives:
        for size in settings.sizes:
            next_is(f"{name}, {_core.format_bytes(size)}")
            found = meeting.together(partial(take, name, size))
            measured.collective(name, found)
    if backend is not None:
        backend.close()


def _links(
    settings: Settings,
    meeting: Meeting,
    measured: Measured,
    pairs: Sequence[tuple[int, int]],
    name: str,
) -> None:
    """As many ranks of one host as of the other send round a ring that passes between the two with
    each hop, so that both directions are as busy as collectives make them."""
    hosts = measured.topology.hosts
    rings = [
        [rank for both in zip(hosts[a], hosts[b], strict=False) for rank in both] for a, b in pairs
    ]
    sizes = [size for size in settings.sizes if size <= LARGEST_MESSAGE]
    ring = next((ring for ring in rings if meeting.rank in ring), None)
    part = None if ring is None else _part(meeting, f"{name}/{ring[0]}", ring)

    def take() -> list[tuple[int, float]] | None:
        if part is None:
            return None
        backend = HetcommBackend("hetcomm", "", part, "")
        found = []
        for size in (*sizes, BULK):
            case = Case("send_recv", "int8", "", 0, size, part.size, in_place=False)
            effort = settings.effort if size != BULK else replace(settings.effort, warmup=1)
            found.append((size, measure(part, [backend], case, effort)[0].median))
        backend.close()
        return found

    everything = meeting.together(take)
    for pair, ring in zip(pairs, rings, strict=True):
        *messages, bulk = everything[ring[0]]
        measured.link(pair, len(ring) // 2, messages, bulk)


def _memory() -> float:
    """Bytes per second that are read and written in a copy here, while all others copy too."""
    source, target = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)
    seconds = []
    for _ in range(COPIES):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return 2 * COPIED / median(seconds)


def _step() -> float:
    """Seconds of a call whose plan is one small copy."""
    with Communicator(_core.LocalStore(), 0, 1, name="alone") as alone:
        source, target = np.ones(2, np.float32), np.zeros(2, np.float32)
        start = time.perf_counter()
        for _ in range(CALLS):
            alone.all_reduce(source, target)
        return (time.perf_counter() - start) / CALLS


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), run)
    sys.stdout.flush()
    sys.exit(status)
