"""Islands take memory only as calls use it, and none of /dev/shm."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import island_processes
import pytest
from islands import fork

from hetcomm import _core

PAGE = 4096


def run(shm: str, members: int, groups: int, *counts: int) -> tuple[int, int]:
    """Bytes of islands that all members hold together before any call, and the additional bytes
    after calls."""
    program = [sys.executable, "-P", island_processes.__file__, shm]
    ran = subprocess.run(
        [*program, *map(str, (members, groups, *counts))],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=Path(__file__).parent,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert len(lines) == members
    return sum(int(before) for before, _ in lines), sum(int(more) for _, more in lines)


@pytest.mark.needs("mount namespaces")
def test_two_hundred_groups_of_eight_ranks_fit_a_containers_shm() -> None:
    groups = 200
    before, more = run("64m", 8, groups, 256)
    assert before <= groups * 4 * PAGE  # bytes by which members talk to each other
    assert more <= 8 * 4 * 2 * PAGE  # a slot of each member, of the one used island


@pytest.mark.needs("mount namespaces")
@pytest.mark.parametrize("shm", ["64k", "8m"])
def test_a_small_dev_shm_limits_nothing(shm: str) -> None:
    before, more = run(shm, 2, 1, 256, 16 << 20)
    assert before <= 4 * PAGE
    assert more <= 2 * 4 * (130 << 10)


def creator(across_namespaces: bool = False) -> subprocess.Popen[str]:
    """A process that makes the memory of an island of 2, prints its name and does not open the
    island."""
    program = f"""
        import sys
        from hetcomm import _core
        name = _core.create_shm_segment(2, 4, 0, across_namespaces={across_namespaces})
        print(name, flush=True)
        sys.stdin.read()
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def name_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def offered() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("hetcomm-")}


def test_a_killed_creator_leaves_nothing() -> None:
    """The creator is killed before another member has come. That member learns of it at once."""
    with creator() as process:
        name = name_from(process)
        assert name not in offered()
        process.kill()
        process.wait()
        with pytest.raises(_core.PeerFailedError, match="has ended or failed"):
            _core.ShmIsland(name, 1, 2, timeout=100.0)


def test_a_waiting_member_notices_a_killed_creator() -> None:
    with creator() as process:
        name = name_from(process)
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                _core.ShmIsland(name, 1, 2, timeout=100.0)
            except BaseException as failure:
                failures.append(failure)

        asking = threading.Thread(target=ask)
        asking.start()
        end = time.monotonic() + 60
        while Path("/proc/net/unix").read_text().count(name) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        process.kill()
        process.wait()
        asking.join()
    assert isinstance(failures[0], _core.PeerFailedError)


def test_waiting_for_a_stuck_creator_is_bounded() -> None:
    with creator() as process:
        name = name_from(process)
        with pytest.raises(_core.TimeoutError, match="to give it within 50"):
            _core.ShmIsland(name, 1, 2, timeout=0.05)
        process.kill()


def test_the_next_creator_removes_a_killed_creators_files() -> None:
    """A killed creator leaves a name in /dev/shm, without memory. A name in use stays."""
    with creator(across_namespaces=True) as killed, creator(across_namespaces=True) as alive:
        left, used = name_from(killed), name_from(alive)
        killed.kill()
        killed.wait()
        assert {left, used} <= offered()
        for name in (left, used):
            os.utime(f"/dev/shm/{name}", (0, 0))
        _core.remove_shm_segment(_core.create_shm_segment(2, 4, 0, across_namespaces=True))
        assert left not in offered() and used in offered()
        assert alive.stdin is not None
        alive.stdin.close()
        alive.wait()
        os.unlink(f"/dev/shm/{used}")


@pytest.mark.needs("network namespaces")
def test_members_in_different_network_namespaces_share_an_island() -> None:
    """The members share /dev/shm, and HETCOMM_HOST_ID says that they are on one host."""
    flags = 0x40000000 | (0 if os.geteuid() == 0 else 0x10000000)  # CLONE_NEWNET, CLONE_NEWUSER
    name = _core.create_shm_segment(2, 4, 0, across_namespaces=True)

    def elsewhere() -> None:
        if ctypes.CDLL(None).unshare(flags) != 0:
            os._exit(1)
        os.execv(sys.executable, [
            sys.executable, "-P", "-c",
            f"from hetcomm import _core; _core.ShmIsland({name!r}, 1, 2, timeout=100.0)",
        ])  # fmt: skip

    child = fork(elsewhere)
    island = _core.ShmIsland(name, 0, 2, timeout=100.0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert island is not None and name not in offered()


REFUSE = """
    import ctypes, struct, sys
    import numpy as np
    from hetcomm import _core
    from islands import open_islands, one_piece
    # madvise(..., 23) gives {error}: 6 instructions of a filter for system calls.
    code = [(0x20, 0, 0, 0), (0x15, 0, 3, {madvise}), (0x20, 0, 0, 32), (0x15, 0, 1, 23),
            (0x06, 0, 0, 0x50000 | {error}), (0x06, 0, 0, 0x7FFF0000)]
    filter = b"".join(struct.pack("=HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(filter)
    program = struct.pack("=H6xQ", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
"""

MADVISE = {"x86_64": 28, "aarch64": 233}[os.uname().machine]  # the number of the system call


def refused(error: int, program: str) -> str:
    """The output of a program whose requests for memory fail with this error."""
    head = REFUSE.format(error=error, madvise=MADVISE)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(head) + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.needs("seccomp filters")
def test_refused_memory_ends_the_call_with_the_reason() -> None:
    printed = refused(errno.ENOMEM, """
        island = open_islands(2)[0]
        island.start(0, one_piece("all_reduce", "float32", 1000).call(0))
        try:
            island.wait([0])
        except _core.VendorError as error:
            print(error)
    """)  # fmt: skip
    assert "of memory; got: Cannot allocate memory; free memory or raise the limit" in printed


@pytest.mark.needs("seccomp filters")
def test_kernels_without_early_reservation_work() -> None:
    """As before Linux 5.14."""
    printed = refused(errno.EINVAL, """
        from islands import random_case, run_cases
        islands = open_islands(2)
        cases = [random_case(np.random.default_rng(1), "all_reduce", "float32", "sum", 2, 100_000)]
        run_cases(islands, cases)
        memory = np.frombuffer(_core.SharedMemory(5 << 20), np.uint8)
        print("ran", memory.any())
    """)  # fmt: skip
    assert printed == "ran False\n"
