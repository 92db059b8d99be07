"""Required behaviour of a device, on the library that the environment names.

Each case runs in a process of its own, because a process keeps the first runtime it loads: `python
devices.py <case> <vendor>`.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from hetcomm import _core

BOUND = 20.0  # seconds; far above the time of any case, so that a hang fails


class Gate:
    """Holds the later work of a stream, by a function of the host, until it is opened."""

    def __init__(self, device: _core.Device, stream: int) -> None:
        self._opened = threading.Event()
        device.call(stream, lambda: self._opened.wait(3 * BOUND))

    def open(self) -> None:
        self._opened.set()


def finish(device: _core.Device, stream: int) -> None:
    """Waits until all work in the stream is complete."""
    event = device.make_event()
    device.record(event, stream)
    until(lambda: device.passed(event))
    device.destroy_event(event)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + BOUND
    while not done():
        assert time.monotonic() < end, "expected the stream to come to its end; it did not"


def bytes_of(random_: random.Random, size: int) -> np.ndarray:
    return np.frombuffer(random_.randbytes(size), dtype=np.uint8).copy()


def copies(vendor: str) -> None:
    """Odd sizes at odd offsets come back unchanged, and their neighbours keep their values."""
    device = _core.Device.open(vendor, 0)
    stream = device.make_stream()
    seed = int(os.environ.get("HETCOMM_TEST_SEED", random.randrange(1 << 30)))
    print(f"HETCOMM_TEST_SEED={seed}")
    random_ = random.Random(seed)
    for size in [
        0,
        1,
        3,
        255,
        257,
        4097,
        1_000_003,
        *(random_.randrange(1 << 18) for _ in "12345"),
    ]:
        offset = random_.randrange(64)
        source = bytes_of(random_, size)
        memory = device.allocate(size + offset)
        pinned = device.allocate_pinned(size + offset)
        before = bytes_of(random_, size + 2)
        target = before.copy()
        device.copy(memory + offset, source.ctypes.data, size, stream)
        device.copy(pinned + offset, memory + offset, size, stream)
        device.copy(target.ctypes.data + 1, pinned + offset, size, stream)
        finish(device, stream)
        assert (target[1 : size + 1] == source).all()
        assert target[0] == before[0] and target[-1] == before[-1]
        device.release(memory)
        device.release_pinned(pinned)
    device.destroy(stream)


def order(vendor: str) -> None:
    """Copies and calls of one stream happen in order."""
    device = _core.Device.open(vendor, 0)
    stream = device.make_stream()
    memory = device.allocate(8)
    pinned = device.allocate_pinned(8)
    values = np.arange(100, dtype=np.int64)
    seen: list[int] = []
    view = np.ctypeslib.as_array((ctypes.c_int64 * 1).from_address(pinned))
    for value in range(len(values)):
        device.copy(memory, values.ctypes.data + 8 * value, 8, stream)
        device.copy(pinned, memory, 8, stream)
        device.call(stream, lambda: seen.append(int(view[0])))
    finish(device, stream)
    assert seen == list(range(100))


def between_streams(vendor: str) -> None:
    """A stream that waits for another stream's event sees that stream's work."""
    device = _core.Device.open(vendor, 0)
    first, second = device.make_stream(), device.make_stream()
    event, after = device.make_event(), device.make_event()
    seen: list[str] = []
    gate = Gate(device, first)
    device.call(first, lambda: seen.append("first"))
    device.record(event, first)
    device.wait_event(second, event)
    assert not device.passed(event)
    device.call(second, lambda: seen.append("second"))
    device.record(after, second)
    assert not device.passed(after)
    gate.open()
    until(lambda: device.passed(after))
    assert device.passed(event) and seen == ["first", "second"]
    for each in (event, after):
        device.destroy_event(each)
    assert {device.make_event(), device.make_event()} == {event, after}  # from the cache


def memory(vendor: str) -> None:
    """Released memory is used again, and a query names the device of memory."""
    device = _core.Device.open(vendor, 0)
    assert device is _core.Device.open(vendor, 0)
    for take, give in (
        (device.allocate, device.release),
        (device.allocate_pinned, device.release_pinned),
    ):
        first = take(1000)
        second = take(1000)
        assert first != second
        give(first)
        assert take(600) == first
        give(0)
        large = take(1 << 30)
        give(large)
        device.trim()
        give(take(1 << 30))
    own, pinned = device.allocate(10), device.allocate_pinned(10)
    assert device.holds(own) and device.holds(own + 9)
    assert not device.holds(pinned)
    assert not device.capturing(device.make_stream()) and not device.capturing(0)


def both(vendor: str) -> None:
    """Two vendors in one process: bytes go from one vendor's memory over pinned memory to the
    other's."""
    here = _core.Device.open(vendor, 0)
    there = _core.Device.open({"nvidia": "amd", "amd": "nvidia"}[vendor], 1)
    source = bytes_of(random.Random(1), 10_001)
    target = np.zeros_like(source)
    mine, theirs = here.allocate(source.size), there.allocate(source.size)
    pinned = here.allocate_pinned(source.size)
    stream, other = here.make_stream(), there.make_stream()
    here.copy(mine, source.ctypes.data, source.size, stream)
    here.copy(pinned, mine, source.size, stream)
    finish(here, stream)
    there.copy(theirs, pinned, source.size, other)
    there.copy(target.ctypes.data, theirs, source.size, other)
    finish(there, other)
    assert (source == target).all()


def fork(vendor: str) -> None:
    """A forked child cannot use the parent's runtime, gets an error that says so, and may release
    objects."""
    device = _core.Device.open(vendor, 0)
    taken = device.allocate(100)
    child = os.fork()
    if child == 0:
        device.release(taken)
        try:
            _core.Device.open(vendor, 0)
        except _core.VendorError as error:
            os._exit(0 if "spawn" in str(error) and str(os.getppid()) in str(error) else 2)
        os._exit(3)
    assert os.waitpid(child, 0)[1] == 0


def with_kernels(vendor: str) -> tuple[_core.Device, _core.DeviceKernels] | None:
    """None, and the reason in the output, if the device cannot run kernels."""
    device = _core.Device.open(vendor, 0)
    try:
        return device, _core.DeviceKernels.of(device)
    except _core.VendorError as error:
        print(error)
        return None


def damage(vendor: str) -> None:
    """Encoded elements that were changed on their way decode to NaNs, by a device with kernels."""
    if (opened := with_kernels(vendor)) is None:
        return
    device, kernels = opened
    stream, count, header = device.make_stream(), 10_000, 64
    float32 = _core.Dtype.float32
    values = np.random.default_rng(3).normal(size=count).astype(np.float32)
    elements = device.allocate(values.nbytes)
    changed = np.full(4, 0xFF, np.uint8)
    for codec in ("lossless", "topk"):
        device.copy(elements, values.ctypes.data, values.nbytes, stream)
        encoded = device.allocate(header + _core.codec_capacity(codec, float32, count))
        kernels.encode(codec, float32, encoded, elements, 0, count, stream)
        for damaged in (False, True):
            if damaged:
                device.copy(encoded + header, changed.ctypes.data, changed.nbytes, stream)
            kernels.decode(codec, float32, elements, 0, [encoded], count, stream)
            found = np.empty_like(values)
            device.copy(found.ctypes.data, elements, found.nbytes, stream)
            finish(device, stream)
            assert np.isnan(found).any() == damaged, codec
            if codec == "lossless":
                assert damaged or (found == values).all()


def loaded(vendor: str) -> None:
    """A call with nothing to do loads a kernel, so that a launch waits for no other work."""
    if (opened := with_kernels(vendor)) is None:
        return
    device, kernels = opened
    busy, stream, count = device.make_stream(), device.make_stream(), 1000
    source, target = device.allocate(4 * count), device.allocate(4 * count)
    add = (_core.Dtype.float32, _core.ReduceOp.sum)
    kernels.reduce(*add, 0, [0], 0, 0)
    gate = Gate(device, busy)
    launched: list[bool] = []

    def reduce() -> None:
        kernels.reduce(*add, target, [source], count, stream)
        launched.append(True)

    launch = threading.Thread(target=reduce, daemon=True)
    launch.start()
    launch.join(BOUND / 4)
    waits = launch.is_alive()
    gate.open()
    launch.join(BOUND)
    finish(device, stream)
    assert launched, "expected the launch to succeed; it raised"
    assert not waits, "expected the launch to return while another stream is busy; it waited"


CASES = (copies, order, between_streams, memory, both, damage, loaded, fork)

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[1]](sys.argv[2])
