"""Members of islands as processes, in a mount namespace with a small /dev/shm of its own.

    python island_processes.py DEV_SHM MEMBERS GROUPS COUNT...

    python island_processes.py DEV_SHM MEMBERS GROUPS COUNT...

Every member opens GROUPS islands, reduces COUNT float32 in place in the first, and prints what it
holds of the islands' memory, in bytes.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import numpy as np

from hetcomm import _core


def private_shm(size: str) -> bool:
    flags = 0x00020000 | (0 if os.geteuid() == 0 else 0x10000000)  # CLONE_NEWNS, CLONE_NEWUSER
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        libc.unshare(flags) == 0
        and libc.mount(None, b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size}".encode()) == 0
    )


def resident() -> int:
    """Bytes of islands' segments that are resident in this process; shared pages count in
    shares."""
    held, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = "hetcomm-island" in line or "/dev/shm/hetcomm-" in line
        elif inside and line.startswith("Pss:"):
            held += int(line.split()[1]) << 10
    return held


def all_reduce(island: _core.ShmIsland, member: int, members: int, count: int) -> None:
    data = np.full(count, member + 1, np.float32)
    piece = (-1, -1, data.ctypes.data, data.ctypes.data, count)
    kind, dtype, op = _core.StepKind.island_all_reduce, _core.Dtype.float32, _core.ReduceOp.sum
    island.start(0, _core.IslandCall(kind, dtype, op, count, [piece]))
    island.wait([0], timeout=100.0)
    assert (data == members * (members + 1) // 2).all()


def body(member: int, members: int, names: list[int], groups: int, counts: list[int]) -> None:
    """Runs one member. names[m] is the pipe on which member m reads names of segments; member 0 has
    all."""
    islands = []
    for _ in range(groups):
        if member == 0:
            name = _core.create_shm_segment(members, 4, 0)
            for pipe in names[1:]:
                os.write(pipe, name.encode().ljust(64))
        else:
            name = os.read(names[member], 64).decode().strip()
        islands.append(_core.ShmIsland(name, member, members, timeout=100.0))
    before = resident()
    for count in counts:
        all_reduce(islands[0], member, members, count)
    os.write(1, f"{before} {resident() - before}\n".encode())
    all_reduce(islands[0], member, members, 1)  # until all have measured, so that shares add up


def run_member(
    member: int, pipes: list[tuple[int, int]], members: int, groups: int, counts: list[int]
) -> None:
    # A dying member closes its ends, so that no other member reads forever.
    for other, (reader, writer) in enumerate(pipes):
        if other != member:
            os.close(reader)
        if member != 0:
            os.close(writer)
    names = [writer if member == 0 else reader for reader, writer in pipes]
    body(member, members, names, groups, counts)


def main() -> None:
    size, members, groups, *counts = sys.argv[1], *map(int, sys.argv[2:])
    if not private_shm(size):
        raise SystemExit("no private mount was made, although the machine permits them")
    pipes = [os.pipe() for _ in range(members)]
    children = []
    for member in range(members):
        children.append(os.fork())
        if children[-1] == 0:
            status = 1
            try:
                run_member(member, pipes, members, groups, counts)
                status = 0
            except Exception as error:
                os.write(2, f"member {member}: {error}\n".encode())
            finally:
                os._exit(status)
    for pipe in pipes:
        os.close(pipe[0])
        os.close(pipe[1])
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    assert os.listdir("/dev/shm") == []
    raise SystemExit(len(failed))


if __name__ == "__main__":
    main()
