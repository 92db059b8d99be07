"""Programs with tensors of a device that has streams: order of operations, waits, and lifetime of
memory.

The device is a real GPU, or the emulated one of emulated_device.py. Ranks of the CPU take part.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import emulated_device
import torch
import torch.distributed as dist
from torch import Tensor

import hetcomm
from hetcomm import _core
from hetcomm._vendors import vendors

COUNT = 5000
LATE = 150  # milliseconds by which a rank is late, so that a missing wait gives wrong results
BOUND = timedelta(seconds=30)
CALLS = 20  # at a time
CYCLES = 2_000_000  # of a GPU's clock: a millisecond or more


@functools.cache
def on_emulated_device() -> bool:
    """Whether the vendor of this rank is emulated."""
    vendor = os.environ["HETCOMM_VENDOR"]
    return vendor in vendors() and bool(device_of_rank().emulated)


def device_of_rank() -> _core.Device:
    return _core.Device.open(
        os.environ["HETCOMM_VENDOR"] or "nvidia", int(os.environ["HETCOMM_DEVICE"])
    )


def prepare() -> None:
    """Makes the device known to torch, before the process group is made."""
    if on_emulated_device() or not torch.cuda.is_available():
        emulated_device.load()
    elif on_device():
        torch.cuda.set_device(int(os.environ["HETCOMM_DEVICE"]))


def home() -> str:
    if os.environ["HETCOMM_VENDOR"] == "cpu":
        return "cpu"
    return emulated_device.NAME if on_emulated_device() else "cuda"


def on_device() -> bool:
    return home() != "cpu"


def late(rank: int) -> None:
    """Delays the later work of the current stream, most of all on rank 1."""
    if home() == "cuda":
        torch.cuda._sleep(CYCLES * LATE * (1 + rank))
    elif on_device():
        emulated_device.load().delay(LATE * (1 + rank))


def graph() -> Any:
    """A graph that records the work of a stream."""
    return torch.cuda.CUDAGraph() if home() == "cuda" else torch.accelerator.Graph()


def side() -> Any:
    """A stream that begins after the work of the current one."""
    if not on_device():
        return nullcontext()
    stream = torch.Stream(device=home())
    stream.wait_stream(torch.accelerator.current_stream())
    return stream


def closed() -> Any:
    """Lets the current stream stand still until the block ends; a GPU's, for half a second."""
    if home() == "cuda":
        torch.cuda._sleep(CYCLES * 500)
        return nullcontext()
    return emulated_device.load().closed() if on_device() else nullcontext()


def full(value: float, count: int = COUNT) -> Tensor:
    return torch.empty(count, device=home()).fill_(value)


def sum_of(size: int) -> float:
    return size * (size + 1) / 2


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + BOUND.total_seconds()
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0)


def waits_for_the_callers_stream(rank: int, size: int) -> None:
    tensor = full(0)
    with side():
        late(rank)
        tensor.fill_(rank + 1)
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()  # on another stream than the call's
    assert bool((tensor == sum_of(size)).all()), tensor


def a_synchronous_call_orders_the_stream(rank: int, size: int) -> None:
    with side():
        late(rank)
        tensor = full(rank + 1)
        dist.all_reduce(tensor)
        tensor.mul_(2)
        assert bool((tensor == 2 * sum_of(size)).all()), tensor


def waiting_leaves_the_host_alone(rank: int, size: int) -> None:
    """In a native island. Other operations need the host, so wait() waits for the host there."""
    tensors = [full(0) for _ in range(CALLS)]
    with closed():
        works = []
        for tensor in tensors:
            tensor.fill_(rank + 1)
            works.append(dist.all_reduce(tensor, async_op=True))
        if on_device():
            for tensor, work in zip(tensors, works, strict=True):
                work.wait()
                tensor.mul_(2)
                assert not work.is_completed(), "it ended before the tensor was filled"
            assert not torch.accelerator.current_stream().query()
    for tensor, work in zip(tensors, works, strict=True):
        if not on_device():
            work.wait()
            tensor.mul_(2)
        assert bool((tensor == 2 * sum_of(size)).all()), tensor


def submitting_leaves_the_host_alone(rank: int, size: int) -> None:
    tensor, parts = full(0), [full(-1) for _ in range(size)]
    with closed():
        tensor.fill_(rank + 1)
        works = [dist.all_reduce(tensor, async_op=True)]
        works.append(dist.all_gather(parts, full(rank), async_op=True))
        futures = [work.get_future() for work in works]
        if on_device():
            assert not any(work.is_completed() for work in works), "it ended before it could begin"
    for work, future in zip(works, futures, strict=True):
        work.wait()
        assert future.done()
    assert bool((tensor == sum_of(size)).all()), tensor
    assert [part.unique().tolist() for part in parts] == [[peer] for peer in range(size)]


def a_timeout_makes_the_host_wait(rank: int, size: int) -> None:
    late(rank)
    tensor = full(rank + 1)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait(BOUND)
    assert work.is_completed() and work.is_success()
    assert bool((tensor == sum_of(size)).all()), tensor


def completion_shows_without_waiting(rank: int, size: int) -> None:
    late(rank)
    tensor = full(rank + 1)
    work = dist.all_reduce(tensor, async_op=True)
    until(work.is_completed, "never completed")
    with side():
        assert bool((tensor == sum_of(size)).all()), tensor


def futures(rank: int, size: int) -> None:
    late(rank)
    future = dist.all_reduce(full(rank + 1), async_op=True).get_future()
    result = future.then(lambda done: done.value()[0] * 2).wait()
    assert bool((result == 2 * sum_of(size)).all()), result


def lists(rank: int, size: int) -> None:
    """Results that must be copied out of one buffer, after the operation."""
    late(rank)
    parts = [full(-1) for _ in range(size)]
    with side():
        dist.all_gather(parts, full(rank))
        assert [part.unique().tolist() for part in parts] == [[peer] for peer in range(size)]
    inputs = [full(10 * rank + peer) for peer in range(size)]
    late(rank)
    result = full(-1)
    work = dist.reduce_scatter(result, inputs, async_op=True)
    with side():
        work.wait()
        assert bool((result == 10 * (sum_of(size) - size) + rank * size).all()), result


def back_to_back(rank: int, size: int) -> None:
    """Two streams take turns. Each call sees the results of the call before."""
    tensor, streams = full(1), [side(), side()]
    for call in range(12):
        with streams[call % 2]:
            if call % 5 == 0:
                late(rank)
            dist.all_reduce(tensor)
            tensor.sub_(size - 1)
            other = streams[(call + 1) % 2]
            if on_device():
                other.wait_stream(streams[call % 2])
    with streams[0]:
        assert bool((tensor == 1).all()), tensor


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, COUNT, 300_000):
        with side():
            late(rank)
            incoming = full(-1, count)
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, full(rank, count), right),
                dist.P2POp(dist.irecv, incoming, left),
            ])  # fmt: skip
            for work in works:
                work.wait()
            incoming.add_(1)
            assert bool((incoming == left + 1).all()), f"{count} elements"


PROGRAMS = [
    waits_for_the_callers_stream, a_synchronous_call_orders_the_stream,
    submitting_leaves_the_host_alone, a_timeout_makes_the_host_wait,
    completion_shows_without_waiting, futures, lists, back_to_back, messages,
]  # fmt: skip


def reused_memory(rank: int, size: int) -> None:
    """Tensors are dropped before their operation begins. Other tensors must not get their memory
    before the operation is complete."""
    for call in range(5):
        late(rank)
        parts = [full(-1) for _ in range(size)]
        source = full(rank + call)
        work = dist.all_gather(parts, source, async_op=True)
        del source
        junk = [full(-1) for _ in range(size + 2)]
        work.wait()
        del junk
        found = [part.unique().tolist() for part in parts]
        assert found == [[other + call] for other in range(size)], f"call {call}: {found}"
        dist.all_gather([full(-1) for _ in range(size)], full(1), async_op=True)


def aborted(rank: int, size: int) -> str:
    tensor = full(rank + 1)
    dist.all_reduce(tensor)
    torch.accelerator.synchronize() if on_device() else None
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        # An abort may also end an operation that is over here, but not yet at the peer.
        store.wait(["first is over"], BOUND)
        dist.distributed_c10d._abort_process_group()
        return "aborted"
    store.set("first is over", "")
    try:
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()  # only the device's stream waits
        tensor.add_(1)
        work.wait(BOUND)
    except hetcomm.Error as error:
        torch.accelerator.synchronize() if on_device() else None  # the stream continues
        return str(error)
    return "nothing was raised"
