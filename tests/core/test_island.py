"""The shared-memory island: results against NumPy, and failures."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from islands import (
    KINDS,
    STORAGE,
    Case,
    Piece,
    memory,
    one_piece,
    open_islands,
    random_case,
    random_values,
    reduced,
    reducible,
    run_cases,
    run_threads,
)

from hetcomm import _core


@pytest.mark.parametrize("members", range(1, 9))
def test_every_reduction_is_correct(members: int) -> None:
    rng = np.random.default_rng(members)
    islands = open_islands(members, slot_bytes=4096)
    cases = [
        random_case(rng, kind, dtype, op, members, largest)
        for kind in ("all_reduce", "reduce_scatter")
        for dtype, op in reducible()
        for largest in (7, 3001)
    ]
    run_cases(islands, cases)


@pytest.mark.parametrize("members", range(1, 9))
def test_every_movement_is_correct(members: int) -> None:
    rng = np.random.default_rng(members)
    islands = open_islands(members, slot_bytes=4096)
    cases = [
        random_case(rng, kind, dtype, "sum", members, largest)
        for kind in ("all_gather", "all_to_all")
        for dtype in STORAGE
        for largest in (5, 901, 5003)
    ]
    run_cases(islands, cases)


@pytest.mark.parametrize("members", [2, 3, 5])
def test_large_calls_work_with_default_slots(members: int) -> None:
    rng = np.random.default_rng(members)
    islands = open_islands(members)
    cases = [random_case(rng, kind, "float32", "sum", members, 300_001) for kind in KINDS]
    run_cases(islands, cases)


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("in_place", [False, True])
def test_results_larger_than_caches_are_correct(members: int, in_place: bool) -> None:
    """Targets apart from the sources are written past the caches, with the same results."""
    rng = np.random.default_rng(members)
    counts = [2_500_001, 0, 7, 999_983]
    case = Case("all_reduce", "float32", "sum", members, [Piece(count=count) for count in counts])
    case.sources = [
        [memory(random_values(rng, "float32", count), unaligned=True) for count in counts]
        for _ in range(members)
    ]
    case.expected = [
        reduced("float32", "sum", [row[index] for row in case.sources])
        for index in range(len(counts))
    ]
    case.targets = case.sources if in_place else [
        [memory(np.zeros(count, np.float32), unaligned=member % 2 == 0) for count in counts]
        for member in range(members)
    ]  # fmt: skip
    run_cases(open_islands(members), [case])


def test_thousands_of_calls_are_correct() -> None:
    rng = np.random.default_rng(7)
    members = 3
    pairs = reducible()
    islands = open_islands(members, slot_bytes=4096)
    cases = []
    for _ in range(3000):
        dtype, op = pairs[rng.integers(len(pairs))]
        kind = KINDS[rng.integers(len(KINDS))]
        cases.append(random_case(rng, kind, dtype, op, members, int(rng.choice([3, 40, 2500]))))
    run_cases(islands, cases)


def test_lanes_are_independent() -> None:
    """Each member completes its lanes in an order of its own, with several under way at once."""
    rng = np.random.default_rng(11)
    members, lanes = 4, 4
    islands = open_islands(members, lanes=lanes, slot_bytes=4096)
    rounds = [
        [random_case(rng, KINDS[(lane + turn) % 4], "int32", "sum", members, 4001)
         for lane in range(lanes)]
        for turn in range(40)
    ]  # fmt: skip

    def member_body(member: int) -> None:
        order = np.random.default_rng(member)
        for turn, cases in enumerate(rounds):
            for lane in order.permutation(lanes):
                islands[member].start(int(lane), cases[lane].call(member, turn))
            islands[member].wait([int(lane) for lane in order.permutation(lanes)])

    run_threads(members, member_body)
    for cases in rounds:
        for case in cases:
            case.check()


@pytest.mark.parametrize("members", [2, 4, 8])
def test_sleeping_members_are_woken(members: int) -> None:
    """With eventfds a member really sleeps, so a lost wake-up ends in a timeout."""
    rng = np.random.default_rng(members)
    events = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(members)]
    try:
        islands = open_islands(members, slot_bytes=4096, events=events)
        cases = [
            random_case(rng, KINDS[turn % 4], "float32", "sum", members, 3001) for turn in range(60)
        ]
        run_cases(islands, cases)
    finally:
        for event in events:
            os.close(event)


def test_seventy_members_work() -> None:
    """More members than bits in the mask of awaited members, and a slot for each of 70
    receivers."""
    rng = np.random.default_rng(70)
    members = 70
    events = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(members)]
    try:
        islands = open_islands(members, lanes=1, events=events)
        run_cases(islands, [random_case(rng, kind, "int64", "sum", members, 9) for kind in KINDS])
    finally:
        for event in events:
            os.close(event)


def test_an_empty_call_is_a_barrier() -> None:
    islands = open_islands(2)
    empty = Case("all_reduce", "float32", "sum", 2, [])
    islands[0].start(0, empty.call(0))
    for _ in range(100):
        assert not islands[0].progress(0)
    islands[1].start(0, empty.call(1))
    assert islands[1].progress(0) or islands[1].progress(0)
    while not islands[0].progress(0):
        pass


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("larger", [200, 400_000])
def test_mismatched_calls_are_named_and_nothing_is_read(members: int, larger: int) -> None:
    islands = open_islands(members)
    smaller = one_piece("all_reduce", "float32", 100, members)
    other = one_piece("all_reduce", "float32", larger, members)
    before = [smaller.targets[m][0].copy() for m in range(members)]
    texts: dict[int, str] = {}

    def member_body(member: int) -> None:
        case = other if member == members - 1 else smaller
        islands[member].start(0, case.call(member))
        with pytest.raises(_core.InvalidArgumentError) as raised:
            islands[member].wait([0])
        texts[member] = str(raised.value)
        islands[member].start(0, case.call(member))  # the lane keeps failing, with the same cause
        with pytest.raises(_core.InvalidArgumentError):
            islands[member].wait([0])

    run_threads(members, member_body)
    for member in range(members):
        assert f"rank {10 + members - 1} called" in texts[member]
        assert "x 100 " in texts[member]
        assert f"x {larger} " in texts[member]
        assert (smaller.targets[member][0] == before[member]).all()


def test_different_kinds_are_a_mismatch() -> None:
    islands = open_islands(2)
    reduce = one_piece("all_reduce", "float32", 100)
    gather = one_piece("all_gather", "float32", 100)
    gather.pieces[0].source = 0

    def member_body(member: int) -> None:
        islands[member].start(1, (reduce if member == 0 else gather).call(member))
        with pytest.raises(_core.InvalidArgumentError, match=r"collective [02] .*collective [02] "):
            islands[member].wait([1])

    run_threads(2, member_body)


def test_an_unknown_operation_is_rejected() -> None:
    islands = open_islands(1)
    case = one_piece("all_reduce", "float32", 4, members=1, op="bxor")
    islands[0].start(0, case.call(0))
    with pytest.raises(_core.InvalidArgumentError, match="bxor is not defined for float32"):
        islands[0].wait([0])


@pytest.mark.parametrize("asleep", [False, True])
def test_abandoning_ends_the_calls_of_other_members(asleep: bool) -> None:
    events = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)] if asleep else []
    islands = open_islands(3, events=events)
    case = one_piece("all_reduce", "float32", 1000, members=3)
    begun = threading.Barrier(3)

    def member_body(member: int) -> None:
        islands[member].start(2, case.call(member))
        begun.wait()
        if member == 1:
            islands[1].abandon(2)
            return
        try:
            islands[member].wait([2], timeout=60)
        except _core.AbortedError as error:
            assert "rank 11 gave up" in str(error)
            assert error.peer == 11
        else:
            pytest.fail("a call without member 1 was completed")
        islands[member].start(0, case.call(member))
        with pytest.raises(_core.AbortedError):
            islands[member].wait([0])

    run_threads(3, member_body)
    for event in events:
        os.close(event)


def test_a_lone_members_wait_ends_at_its_deadline() -> None:
    islands = open_islands(2)
    case = one_piece("all_reduce", "float32", 10)
    islands[0].start(0, case.call(0))
    with pytest.raises(_core.TimeoutError):
        islands[0].wait([0], timeout=0.05)


def test_attaching_names_missing_members() -> None:
    name = _core.create_shm_segment(3, 4, 0)
    with pytest.raises(_core.TimeoutError, match="missing: rank 7, 8;") as failure:
        _core.ShmIsland(name, 0, 3, ranks=[6, 7, 8], timeout=0.05)
    assert failure.value.peer == 7
    with pytest.raises(_core.PeerFailedError, match="rank 6 does not offer it any more") as failure:
        _core.ShmIsland(name, 1, 3, ranks=[6, 7, 8], timeout=30)
    assert failure.value.peer == 6


def test_attaching_names_the_member_that_never_came() -> None:
    """The error also names the member that gave up, and no timeout that has not passed."""
    name = _core.create_shm_segment(3, 4, 0)
    failures: dict[int, _core.Error] = {}

    def attach(member: int, timeout: float) -> None:
        try:
            _core.ShmIsland(name, member, 3, ranks=[6, 7, 8], timeout=timeout)
        except _core.Error as error:
            failures[member] = error

    joining = threading.Thread(target=attach, args=(0, 60.0))
    joining.start()
    attach(1, 1.0)
    joining.join(30)
    assert type(failures[1]) is _core.TimeoutError and failures[1].peer == 8
    assert type(failures[0]) is _core.PeerFailedError and failures[0].peer == 8
    text = "rank 7 gave up joining the ranks of this host, because rank 8 did not come in time"
    assert text in str(failures[0])


def test_an_unfitting_segment_is_rejected() -> None:
    others = segment_files()
    name = _core.create_shm_segment(2, 4, 0)
    (file,) = segment_files() - others
    magic = os.pread(file, 8, 0)
    try:
        with pytest.raises(_core.TransportError, match="expected 3 members and 4 lanes; got 2"):
            _core.ShmIsland(name, 0, 3)
        os.pwrite(file, b"not a segment", 0)
        with pytest.raises(_core.TransportError, match="a hetcomm segment"):
            _core.ShmIsland(name, 0, 2)
        os.pwrite(file, magic + struct.pack("=II", 6, 0) + struct.pack("=III", 2, 5, 4), 0)
        with pytest.raises(_core.TransportError, match="a fixed size that fits its shape"):
            _core.ShmIsland(name, 0, 2)
    finally:
        _core.remove_shm_segment(name)
    with pytest.raises(_core.PeerFailedError, match="does not offer it any more"):
        _core.ShmIsland(name, 0, 2)


def segment_files() -> set[int]:
    """The segments that this process offers. Earlier tests may have left some."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(entry).startswith("/memfd:hetcomm-island"):
                found.add(int(entry.name))
    return found


def test_a_mapped_segment_cannot_shrink() -> None:
    others = segment_files()
    name = _core.create_shm_segment(2, 4, 0)
    (file,) = segment_files() - others
    with pytest.raises(PermissionError):
        os.truncate(file, 4096)
    _core.remove_shm_segment(name)


def fork(body: object, *arguments: object) -> int:
    """Forks a child that runs body(*arguments). The child exits with 0 if body returns."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body(*arguments)  # type: ignore[operator]
            status = 0
        finally:
            os._exit(status)
    return child


@pytest.mark.slow
def test_members_run_as_processes() -> None:
    members = 4
    name = _core.create_shm_segment(members, 4, 0)

    def member_body(member: int) -> None:
        island = _core.ShmIsland(name, member, members)
        rng = np.random.default_rng(5)  # the same cases in every process
        for sequence in range(100):
            kind = KINDS[sequence % 4]
            case = random_case(rng, kind, "bfloat16", "sum", members, 20_001)
            island.start(0, case.call(member, sequence))
            island.wait([0])
            case.check(member)

    children = [fork(member_body, member) for member in range(members)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * members


def test_a_killed_member_is_waited_for_until_the_deadline() -> None:
    name = _core.create_shm_segment(2, 4, 0)
    reader, writer = os.pipe()

    def victim() -> None:
        island = _core.ShmIsland(name, 1, 2)
        case = one_piece("all_reduce", "float32", 1_000_000)
        island.start(0, case.call(1))
        island.progress(0)
        os.write(writer, b"!")
        signal.pause()

    child = fork(victim)
    island = _core.ShmIsland(name, 0, 2)
    assert os.read(reader, 1) == b"!"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    case = one_piece("all_reduce", "float32", 1_000_000)
    island.start(0, case.call(0))
    with pytest.raises(_core.TimeoutError):
        island.wait([0], timeout=0.2)
    os.close(reader)
    os.close(writer)


def test_the_slot_size_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_SHM_SLOT", "2G")
    with pytest.raises(
        _core.InvalidArgumentError,
        match="HETCOMM_SHM_SLOT: expected a whole number from 4096 to 1073741824",
    ):
        _core.create_shm_segment(2, 4, 0)
    monkeypatch.setenv("HETCOMM_SHM_SLOT", "16k")
    others = segment_files()
    name = _core.create_shm_segment(2, 4, 0)
    (file,) = segment_files() - others
    assert os.fstat(file).st_size < 2 * 4 * 4 * 17 * 1024
    _core.remove_shm_segment(name)
