"""Shared allocations that other members can read, or cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SECOND_MEMBER = 256  # bytes before its MemberState: the header, and the state of the first member

# all_reduce calls of a member process. Prints the number of direct calls, and describe().
CALLS = """
    import sys
    import numpy as np
    from hetcomm import _core
    if member == 0:
        name = _core.create_shm_segment(2, 1, 0)
        print(name, flush=True)
    else:
        name = sys.stdin.readline().strip()
    island = _core.ShmIsland(name, member, 2, lanes=1, ranks=[4, 7], timeout=20.0)
    memory = np.frombuffer(_core.SharedMemory(1_200_000), np.int32)
    {before}
    for sequence in range(4):
        memory[:] = member + 1
        piece = (-1, -1, memory.ctypes.data, memory.ctypes.data, memory.size)
        island.start(0, _core.IslandCall(_core.StepKind.island_all_reduce, _core.Dtype.int32,
                                         _core.ReduceOp.sum, sequence, [piece]))
        island.wait([0])
        assert (memory == 3).all()
    print(island.direct_calls(), island.describe())
"""


def run_members(head: str, before: str = "") -> list[tuple[str, str]]:
    """The outputs and warnings of two members. `head` and `before` are lines of their programs."""
    program = (
        "import sys\nmember = int(sys.argv[1])\n"
        + textwrap.dedent(head)
        + textwrap.dedent(CALLS).format(before=before)
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(member)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for member in range(2)
    ]
    assert ranks[0].stdout is not None and ranks[1].stdin is not None
    print(ranks[0].stdout.readline(), file=ranks[1].stdin, flush=True)
    texts = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], texts
    return [(printed, warned) for printed, warned in texts]


@pytest.mark.needs("process namespaces")
def test_an_unopenable_arena_is_copied_through_slots() -> None:
    """A member is in another process namespace. Calls go through slots, and all members know
    why."""
    flags = 0x20000000 | (0 if os.geteuid() == 0 else 0x10000000)  # CLONE_NEWPID, CLONE_NEWUSER
    texts = run_members(f"""
        import ctypes, os
        if member == 1:
            if ctypes.CDLL(None).unshare({flags}) != 0:
                raise SystemExit(77)
            child = os.fork()
            if child:
                raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    for printed, warned in texts:
        assert printed.startswith("0 shared memory, 2 ranks, ")
        assert "shared allocations like other memory (rank 4 cannot open that of rank 7" in printed
        assert "shared allocations are copied like other memory: rank 4 cannot" in warned


@pytest.mark.needs("limits of addresses")
def test_an_unmappable_arena_is_copied_through_slots() -> None:
    """One member lacks address space. No call fails, and all go through slots."""
    limit = """
    if member == 1:
        import resource
        pages = int(open("/proc/self/statm").read().split()[0])
        few = pages * resource.getpagesize() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (few, few))
    """
    (printed, warned), (limited_printed, limited_warned) = run_members("", textwrap.dedent(limit))
    assert printed.startswith("0 shared memory, 2 ranks, ")
    assert limited_printed.startswith("0 shared memory, 2 ranks, ")
    assert "shared allocations" not in warned
    assert limited_warned.count("shared allocations are copied like other memory: those of") == 1
    assert "cannot be mapped: Cannot allocate memory" in limited_warned


def test_islands_of_a_process_share_mappings() -> None:
    """Two islands of the same members, with direct calls only: one mapping beside the arena's
    own."""
    program = """
        import re, sys
        from islands import open_islands
        from test_island_shared import warm_up
        first, second = open_islands(2), open_islands(2)
        warm_up(first)
        warm_up(second)
        maps = lambda: open("/proc/self/maps").read().count("/memfd:hetcomm (")
        both = maps()
        del first
        one = maps()
        del second
        print(both, one, maps())
    """
    folder = Path(__file__).parent
    ran = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    )
    assert ran.stdout.split() == ["2", "2", "1"], ran.stderr


def test_only_arenas_are_opened() -> None:
    """A member offers a pipe without a writer. Opening the pipe would block forever."""
    program = f"""
        import os, struct, sys, tempfile
        from hetcomm import _core
        name = _core.create_shm_segment(2, 1, 0)
        folder = tempfile.mkdtemp()
        os.mkfifo(folder + "/pipe")
        pipe = os.open(folder + "/pipe", os.O_RDONLY | os.O_NONBLOCK)
        found = os.fstat(pipe)
        os.unlink(folder + "/pipe")
        os.rmdir(folder)
        descriptors = ["/proc/self/fd/" + number for number in os.listdir("/proc/self/fd")]
        [file] = [path for path in descriptors if os.path.exists(path)
                  and os.readlink(path).startswith("/memfd:hetcomm-island")]
        with open(file, "r+b") as segment:
            segment.seek({SECOND_MEMBER})
            told = (2, 0, 0, os.getpid(), pipe, found.st_dev, found.st_ino, 0)
            segment.write(struct.pack("=QQIii4xQQQ", *told))
        print(_core.ShmIsland(name, 0, 2, lanes=1, timeout=20.0).describe())
    """
    ran = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "rank 0 cannot open that of rank 1" in ran.stdout, ran.stderr
