"""Calls among shared allocations."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from islands import (
    KINDS,
    STORAGE,
    Case,
    Piece,
    fork,
    open_islands,
    random_case,
    random_values,
    reducible,
    run_cases,
    run_threads,
    shared,
)

from hetcomm import _core


class Pool:
    """Parts of one shared allocation, each given out once."""

    def __init__(self, size: int) -> None:
        self._memory = shared(size)
        self._at = 0

    def __call__(self, count: int) -> np.ndarray:
        part = self._memory[self._at :][:count]
        assert part.size == count, "the pool is too small"
        self._at += (count + 63) // 64 * 64
        return part


def direct_calls(islands: list[_core.ShmIsland]) -> list[int]:
    return [island.direct_calls() for island in islands]


def all_reduce(
    members: int, count: int, bytes_of: Callable[[int], np.ndarray] = shared, last: bool = True
) -> Case:
    """all_reduce in place of float32. The last member's buffer is ordinary memory unless `last`."""
    rng = np.random.default_rng(count)
    case = Case("all_reduce", "float32", "sum", members, [Piece(count=count)])
    for member in range(members):
        ordinary = member == members - 1 and not last
        raw = np.empty(4 * count, np.uint8) if ordinary else bytes_of(4 * count)
        buffer = raw.view(np.float32)
        buffer[:] = rng.standard_normal(count)
        case.sources.append([buffer])
        case.targets.append([buffer])
    total = case.sources[0][0].copy()
    for source in case.sources[1:]:
        total += source[0]
    case.expected = [total]
    return case


def warm_up(islands: list[_core.ShmIsland], lanes: int = 1) -> int:
    """Makes calls until every lane knows that allocations are shared. Returns the number of direct
    calls."""
    case = all_reduce(len(islands), 1 << 20)
    for lane in range(lanes):
        for _ in range(2):

            def member_body(member: int, lane: int = lane) -> None:
                islands[member].start(lane, case.call(member))
                islands[member].wait([lane])

            run_threads(len(islands), member_body)
    assert direct_calls(islands) == [lanes] * len(islands)
    return lanes


@pytest.mark.parametrize("members", range(2, 6))
def test_random_calls_are_correct(members: int) -> None:
    """Every kind and dtype, with pieces of odd sizes on either side of the threshold, empty,
    unaligned and in place. Some calls have ordinary memory."""
    rng = np.random.default_rng(members)
    islands = open_islands(members)
    before = warm_up(islands)
    pool = Pool(768 << 20)
    pairs = reducible()
    cases = []
    for kind in KINDS:
        for dtype in STORAGE:
            op = "sum"
            if kind in ("all_reduce", "reduce_scatter"):
                ops = [op for name, op in pairs if name == dtype]
                if not ops:
                    continue
                op = str(rng.choice(ops))
            largest = int(rng.choice([700, 90_000, 250_000])) // np.dtype(STORAGE[dtype]).itemsize
            cases.append(random_case(rng, kind, dtype, op, members, largest, pool))
            if rng.random() < 0.1:
                cases.append(random_case(rng, kind, dtype, op, members, largest))
    run_cases(islands, cases)
    calls = direct_calls(islands)
    assert calls == [calls[0]] * members
    assert calls[0] - before >= len(cases) // 10


def test_large_calls_work_in_all_lanes() -> None:
    """Many rounds for each call, beyond the size of caches, and lanes completed in any order."""
    rng = np.random.default_rng(3)
    members, lanes = 3, 4
    islands = open_islands(members, lanes=lanes)
    before = warm_up(islands, lanes)
    pool = Pool(512 << 20)
    cases = [
        random_case(rng, KINDS[lane], "int32", "sum", members, 1_500_001, pool)
        for lane in range(lanes)
    ]

    def member_body(member: int) -> None:
        order = np.random.default_rng(member)
        for lane in order.permutation(lanes):
            islands[member].start(int(lane), cases[lane].call(member))
        islands[member].wait([int(lane) for lane in order.permutation(lanes)])

    run_threads(members, member_body)
    for case in cases:
        case.check()
    assert direct_calls(islands) == [before + lanes] * members


@pytest.mark.parametrize("count", [32_769, 65_535, 1_000_003])
def test_slots_and_direct_reads_give_the_same_bits(count: int) -> None:
    """NumPy adds in the same order."""
    islands = open_islands(3)
    warm_up(islands)
    before = direct_calls(islands)[0]
    run_cases(islands, [all_reduce(3, count)])
    run_cases(islands, [all_reduce(3, count, last=False)])
    assert direct_calls(islands) == [before + (count >= 196_608)] * 3


def exchange_in_place(members: int, count: int) -> Case:
    """An all_to_all in which every target is the source of another piece."""
    rng = np.random.default_rng(0)
    pieces = [Piece(s, t, count) for s in range(members) for t in range(members)]
    case = Case("all_to_all", "int32", "sum", members, pieces)
    blocks = [[shared(4 * count).view(np.int32) for _ in range(members)] for _ in range(members)]
    for row in blocks:
        for block in row:
            block[:] = random_values(rng, "int32", count)
    case.expected = [blocks[p.source or 0][p.target or 0].copy() for p in pieces]
    empty = np.empty(0, np.int32)
    case.sources = [
        [blocks[m][p.target or 0] if p.source == m else empty for p in pieces]
        for m in range(members)
    ]
    case.targets = [
        [blocks[m][p.source or 0] if p.target == m else empty for p in pieces]
        for m in range(members)
    ]
    return case


def test_overlapping_source_and_target_go_through_slots() -> None:
    islands = open_islands(2)
    before = warm_up(islands)
    run_cases(islands, [exchange_in_place(2, 100_000) for _ in range(3)])
    assert direct_calls(islands) == [before] * 2


def test_one_member_with_ordinary_memory_is_correct() -> None:
    """Members offer direct reads several times, stop, and offer them again after a call that could
    be direct."""
    islands = open_islands(2)
    before = warm_up(islands)
    run_cases(islands, [all_reduce(2, 200_000, last=False) for _ in range(12)])
    assert direct_calls(islands) == [before] * 2
    run_cases(islands, [all_reduce(2, 200_000) for _ in range(3)])
    assert direct_calls(islands) == [before + 2] * 2


def test_small_calls_use_slots() -> None:
    islands = open_islands(2)
    before = warm_up(islands)
    run_cases(islands, [all_reduce(2, 1000)])
    assert direct_calls(islands) == [before] * 2


def test_members_run_as_processes() -> None:
    """Each member allocates for itself, in another order."""
    members = 3
    name = _core.create_shm_segment(members, 1, 0)

    def member_body(member: int) -> None:
        island = _core.ShmIsland(name, member, members, lanes=1)
        held = [shared((member + 1) * 5000) for _ in range(member)]
        rng = np.random.default_rng(5)  # the same cases in every process
        for sequence in range(12):
            kind = KINDS[sequence % 4]
            case = random_case(rng, kind, "bfloat16", "sum", members, 200_001, shared)
            island.start(0, case.call(member, sequence))
            island.wait([0])
            case.check(member)
        assert island.direct_calls() > 2
        assert all((array == 0).all() for array in held)

    children = [fork(partial(member_body, member)) for member in range(members)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * members


def test_a_killed_member_is_waited_for_until_the_deadline() -> None:
    name = _core.create_shm_segment(2, 1, 0)
    reader, writer = os.pipe()

    def victim() -> None:
        island = _core.ShmIsland(name, 1, 2, lanes=1)
        case = all_reduce(2, 1 << 20)
        for sequence in range(2):
            island.start(0, case.call(1, sequence))
            island.wait([0])
        island.start(0, case.call(1, 2))
        island.progress(0)
        os.write(writer, b"!")
        signal.pause()

    child = fork(victim)
    island = _core.ShmIsland(name, 0, 2, lanes=1)
    case = all_reduce(2, 1 << 20)
    for sequence in range(2):
        island.start(0, case.call(0, sequence))
        island.wait([0])
    assert island.direct_calls() == 1
    assert os.read(reader, 1) == b"!"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    island.start(0, case.call(0, 2))
    with pytest.raises(_core.TimeoutError):
        island.wait([0], timeout=0.2)
    os.close(reader)
    os.close(writer)


def test_an_abandoning_member_fails_the_call_of_others() -> None:
    """The freed memory of that member may belong to another object by then."""
    islands = open_islands(2)
    warm_up(islands)
    case = all_reduce(2, 1 << 20)
    for member in range(2):
        islands[member].start(0, case.call(member))
    islands[0].progress(0)
    islands[1].progress(0)
    islands[0].abandon(0)
    del case
    with pytest.raises(_core.AbortedError, match="rank 10 gave up"):
        islands[1].wait([0])
