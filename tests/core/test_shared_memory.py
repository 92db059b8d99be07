"""The lifetime of shared allocations."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from islands import fork, shared

import hetcomm
from hetcomm import _core


def arena_bytes() -> int:
    """The memory of this machine that this process's shared allocations take."""
    for entry in os.scandir("/proc/self/fd"):
        if os.readlink(entry.path).startswith("/memfd:hetcomm "):  # not of an island
            return os.stat(entry.path).st_blocks * 512
    return 0


def reserves_early() -> bool:
    """False under qemu, which accepts the advice and does nothing."""
    descriptor = os.memfd_create("probe")
    try:
        os.ftruncate(descriptor, 1 << 16)
        with mmap.mmap(descriptor, 1 << 16) as memory:
            memory.madvise(23)  # MADV_POPULATE_WRITE
            return os.fstat(descriptor).st_blocks > 0
    except OSError:  # before Linux 5.14, where hetcomm touches each page
        return True
    finally:
        os.close(descriptor)


def test_memory_is_given_back() -> None:
    """With huge pages, one page of 2 MiB may stay with the other allocation."""
    gc.collect()
    before = arena_bytes()
    first, second = shared(5 << 20), shared(100)
    assert arena_bytes() - before >= 5 << 20 or not reserves_early()
    assert (first == 0).all()
    first[:] = second[:] = 7
    assert arena_bytes() - before >= 5 << 20
    part = first[1 << 20 :]
    del first
    gc.collect()
    assert arena_bytes() - before >= 5 << 20  # a part keeps the allocation
    assert (part == 7).all()
    del part
    gc.collect()
    assert arena_bytes() - before <= 2 << 20
    assert (second == 7).all()
    assert (shared(5 << 20) == 0).all()


def test_addresses_are_used_again_in_any_order() -> None:
    """Adjacent released ranges merge, so no gaps stay."""
    gc.collect()
    lowest = shared(1).ctypes.data
    rng = np.random.default_rng(0)
    arrays = [shared(int(rng.integers(1, 3 << 20))) for _ in range(60)]
    for index in rng.permutation(60):
        arrays[index][:] = index
    for index, array in enumerate(arrays):
        assert (array == index).all()
    del array
    for index in rng.permutation(60):
        arrays[index] = np.empty(0, np.uint8)
    gc.collect()
    assert shared(1).ctypes.data == lowest


def test_an_oversized_request_is_an_error() -> None:
    with pytest.raises(_core.VendorError, match=r"shared allocation: expected .* of memory; got"):
        _core.SharedMemory(1 << 50)


def test_unavailable_memory_is_an_error() -> None:
    """An error comes before the system kills a process, though there are addresses."""
    asked = _core.available_memory() + (1 << 30)
    with pytest.raises(_core.VendorError, match="available; allocate less"):
        _core.SharedMemory(asked)


def test_available_memory_is_reported() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1 << 20 < _core.available_memory() < total


# Files in place of /sys/fs/cgroup. The root of a container's view may be the container's group.
CONTROL_GROUPS = {
    "version 1": {
        "memory/memory.limit_in_bytes": 300 << 20,
        "memory/memory.usage_in_bytes": 200 << 20,
        "memory/memory.stat": f"total_active_file {30 << 20}\ntotal_inactive_file {20 << 20}",
    },
    "version 2": {
        "memory.max": 300 << 20,
        "memory.current": 200 << 20,
        "memory.stat": f"active_file {30 << 20}\ninactive_file {20 << 20}",
    },
}
IN_GROUP = """
import os, sys
from hetcomm.emulate import kernel
kernel.unshare(kernel.NEW_MOUNT | (0 if os.geteuid() == 0 else kernel.NEW_USER))
kernel.mount("none", "/", "", kernel.MOUNT_RECURSIVE | kernel.MOUNT_PRIVATE)
kernel.mount(sys.argv[1], "/sys/fs", "", kernel.MOUNT_BIND)
from hetcomm import _core
print(_core.available_memory())
"""


@pytest.mark.needs("mount namespaces")
@pytest.mark.parametrize("version", CONTROL_GROUPS)
def test_a_limit_of_control_groups_bounds_the_memory(tmp_path: Path, version: str) -> None:
    for name, content in CONTROL_GROUPS[version].items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    run = [sys.executable, "-c", IN_GROUP, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 150 << 20


@pytest.mark.parametrize("count", [1 << 63, 1 << 70])
def test_exceeding_the_address_space_is_an_error(count: int) -> None:
    with pytest.raises(_core.VendorError, match=f"shared allocation: expected .* got {count}"):
        _core.SharedMemory(count)
    with pytest.raises(_core.VendorError, match="shared allocation: expected"):
        hetcomm.shared_empty((count, 3))


def test_a_negative_size_is_an_error() -> None:
    for count in (-1, -(1 << 70)):
        with pytest.raises(_core.InvalidArgumentError, match=f"got {count}"):
            _core.SharedMemory(count)


@pytest.mark.parametrize(
    "shape", [-1, (2, -3), (0, 1 << 70), (1 << 40, 0, 1 << 40), 1.5, ("2",), None]
)
def test_an_invalid_shape_is_rejected(shape: object) -> None:
    with pytest.raises(_core.InvalidArgumentError, match="shape: expected"):
        hetcomm.shared_empty(shape)  # type: ignore[arg-type]


def test_a_forked_child_keeps_its_parents_memory_intact() -> None:
    array = shared(1 << 20)
    array[:] = 1

    def body() -> None:
        nonlocal array
        own = shared(1 << 20)
        own[:] = 5
        array[:10] = 2  # shared with the parent
        array = own
        gc.collect()

    assert os.waitpid(fork(body), 0)[1] == 0
    assert (array[:10] == 2).all()
    assert (array[10:] == 1).all()
    assert shared(1 << 20).ctypes.data != array.ctypes.data
