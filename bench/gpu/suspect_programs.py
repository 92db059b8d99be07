"""Programs of suspects.py: what a real device alone can show to hang or to be wrong.

A program takes the rank, the number of ranks, and whether all ranks are on the device, so that a
native library carries the operations. It returns seconds of rank 0 by name. Its tensors are those
of stream_programs.py, which also has the programs that the tests share.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import stream_programs
import torch
import torch.distributed as dist
from graph_programs import refused, replayed
from stream_programs import device_of_rank, full, on_device, side, sum_of, until

import hetcomm
from hetcomm import _core

Figures = dict[str, float]
PATIENCE = timedelta(seconds=30)  # for rank 0, where its work must not wait for another rank
LATE = timedelta(seconds=1)  # a rank's lateness, where the work of rank 0 may wait for that rank


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def _meanwhile(rank: int, native: bool, action: Callable[[], None], what: str) -> Figures:
    """Rank 0 acts while its all_reduce waits for the other ranks.

    Where the host moves the operation, the others wait for the action. A native library's kernel
    may hold up the action, so the others then come after a while.
    """
    tensor = full(rank + 1)
    dist.all_reduce(tensor)
    tensor.fill_(rank + 1)
    store, size = _store(), dist.get_world_size()
    found: Figures = {}
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        begin = time.perf_counter()
        action()
        found[what] = time.perf_counter() - begin
        store.set("acted", "")
        work.wait()
    else:
        try:
            store.wait(["acted"], LATE if native else PATIENCE)
        except Exception as error:
            if not native:
                raise RuntimeError(
                    f"{what}: waits for an operation that needs this rank"
                ) from error
        dist.all_reduce(tensor)
    assert bool((tensor == sum_of(size)).all()), tensor
    return found


def growing_calls(rank: int, size: int, native: bool) -> Figures:
    """Operations of growing size, so that each takes new memory, on a stream each."""
    calls = []
    for call, count in enumerate((5000, 300_001, 11, 700_003)):
        stream = side()
        with stream:
            tensor = full(rank + 1 + call, count)
            calls.append((stream, tensor, dist.all_reduce(tensor, async_op=True)))
    for stream, tensor, work in calls:
        with stream:
            work.wait()
            tensor.add_(1)
    for call, (stream, tensor, _) in enumerate(calls):
        with stream:
            wanted = sum_of(size) + size * call + 1
            assert bool((tensor == wanted).all()), f"call {call}: expected {wanted}, got {tensor}"
    return {}


def allocation(rank: int, size: int, native: bool) -> Figures:
    def allocate() -> None:
        device = device_of_rank()
        for bytes_ in (3 << 20, 48 << 20):
            device.release_pinned(device.allocate_pinned(bytes_))
            device.release(device.allocate(bytes_))
        device.destroy(device.make_stream())
        device.destroy_event(device.make_event())

    return _meanwhile(rank, native, allocate, "allocating beside a pending call")


def compilation(rank: int, size: int, native: bool) -> Figures:
    def compile_kernels() -> None:
        device = device_of_rank()
        kernels = _core.DeviceKernels.of(device)
        stream = device.make_stream()
        for dtype in (_core.Dtype.float64, _core.Dtype.bfloat16):
            kernels.reduce(dtype, _core.ReduceOp.max, 0, [0], 0, stream)

    return _meanwhile(rank, native, compile_kernels, "compiling and loading beside a pending call")


def first_kernel(rank: int, size: int, native: bool) -> Figures:
    def launch() -> None:
        if stream_programs.home() == "cuda":
            assert float(torch.erfinv(torch.zeros(64, device="cuda")).sum()) == 0
        else:
            with side():
                assert bool((full(3) == 3).all())

    return _meanwhile(rank, native, launch, "the first launch of a kernel beside a pending call")


def pool_streams(rank: int, size: int, native: bool) -> Figures:
    """A future that is not over leaves the streams of torch's pool to their other users."""
    futures = []

    def compute() -> None:
        for number in range(33):  # the pool has 32
            with side():
                tensor = full(number)
                tensor.add_(1)
                assert bool((tensor == number + 1).all()), tensor

    def with_future() -> None:
        pending = full(1)
        futures.append(dist.all_reduce(pending, async_op=True).get_future())
        compute()

    found = _meanwhile(rank, native, with_future, "computing on all streams of the pool")
    if rank != 0:
        futures.append(dist.all_reduce(full(1), async_op=True).get_future())
    result = futures[0].wait()
    assert bool(((result[0] if isinstance(result, list) else result) == size).all())
    return found


def two_threads(rank: int, size: int, native: bool) -> Figures:
    """A group for each of two threads. Its largest operation ran once before, so nothing is
    allocated while both threads work (docs/devices.md)."""
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    failures: list[BaseException] = []
    for group in groups:
        dist.all_reduce(full(1, 200_000), group=group)

    def work(number: int) -> None:
        try:
            with side():
                for call in range(20):
                    tensor = full(rank + 1 + number, 1 + 10_000 * call)
                    dist.all_reduce(tensor, group=groups[number])
                    assert bool((tensor == sum_of(size) + size * number).all()), tensor
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE.total_seconds())
        assert not thread.is_alive(), "a thread does not end"
    if failures:
        raise failures[0]
    return {}


def after_a_failure(rank: int, size: int, native: bool) -> Figures:
    """Rank 1 aborts while rank 0's call is under way: rank 0 hears of it, its stream continues, and
    the next call reports the failure."""
    begin = time.perf_counter()
    text = stream_programs.aborted(rank, size)
    took = time.perf_counter() - begin
    if rank != 0:
        return {}
    assert "rank 1" in text and "abort" in text, text
    with side():
        assert bool((full(3) == 3).all()), "the device computes no more"
    try:
        dist.all_reduce(full(1))
    except hetcomm.Error:
        return {"from the call to its failure": took}
    raise AssertionError("the next call succeeded")


def allocator(rank: int, size: int, native: bool) -> Figures:
    stream_programs.reused_memory(rank, size)
    return {}


def graphs(rank: int, size: int, native: bool) -> Figures:
    """Graphs record what the native library carries."""
    dist.all_gather([full(1) for _ in range(size)], full(1))
    replayed(rank, size)
    return {}


def refused_graphs(rank: int, size: int, native: bool) -> Figures:
    """Graphs refuse what the host moves, and the group continues."""
    for text in refused(rank, size, not native):
        assert "while a graph is being captured" in text, text
    return {}


def waits(rank: int, size: int, native: bool) -> Figures:
    """What a call and its wait() take of the host's time."""
    rows: dict[str, list[float]] = {"call": [], "wait()": []}
    tensor = full(0, 1000)
    for _ in range(50):
        begin = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        called = time.perf_counter()
        work.wait()
        rows["call"].append(called - begin)
        rows["wait()"].append(time.perf_counter() - called)
    if on_device():
        until(work.is_completed, "never completed")
    return {f"{name}, 4 kB": statistics.median(times) for name, times in rows.items()}


def first_calls(rank: int, size: int, native: bool) -> Figures:
    """The first call of a group, beside the second."""
    found = {}
    for name in ("first", "second"):
        tensor = full(rank + 1, 1 << 18)
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        assert bool((tensor == sum_of(size)).all()), tensor
        found[f"{name} call"] = time.perf_counter() - begin
    return found


def kernels_of_a_start(rank: int, size: int, native: bool) -> Figures:
    """The kernels that a job with codecs needs, in a process that has none yet."""
    device = device_of_rank()
    begin = time.perf_counter()
    kernels = _core.DeviceKernels.of(device)
    stream = device.make_stream()
    for dtype in (_core.Dtype.float32, _core.Dtype.bfloat16):
        kernels.reduce(dtype, _core.ReduceOp.sum, 0, [0], 0, stream)
        for codec in ("int8", "fp8_e4m3"):
            kernels.encode(codec, dtype, 0, 0, 0, 0, stream)
            kernels.decode(codec, dtype, 0, 0, [0], 0, stream)
    return {"kernels": time.perf_counter() - begin}
