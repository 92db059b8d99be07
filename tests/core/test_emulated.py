"""The emulated runtimes: order, asynchrony, kinds of memory, rates of copy engines, faults."""

from __future__ import annotations

import ctypes

import pytest
from emulated_vendor import (
    BOUND,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    Gate,
    Runtime,
    run,
)
from undisturbed import undisturbed


@pytest.fixture(params=["nvidia", "amd"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return Runtime(request.param)


def test_a_stream_runs_in_order_and_in_the_background(runtime: Runtime) -> None:
    stream, event = runtime.stream(), runtime.event()
    gate = Gate(runtime, stream)
    first, second = runtime.block(64), runtime.block(64)
    runtime("MemsetAsync", first, 7, ctypes.c_size_t(64), stream)
    runtime.copy(second, first, 64, stream)
    runtime("MemsetAsync", first, 9, ctypes.c_size_t(64), stream)
    runtime("EventRecord", event, stream)
    assert gate.entered.wait(BOUND)
    assert runtime.code("StreamQuery", stream) == NOT_READY
    assert runtime.code("EventQuery", event) == NOT_READY
    gate.opened.set()
    runtime("EventSynchronize", event)
    assert ctypes.string_at(first, 64) == b"\x09" * 64
    assert ctypes.string_at(second, 64) == b"\x07" * 64
    runtime("StreamSynchronize", stream)
    assert runtime.code("StreamQuery", stream) == 0


def test_a_stream_waits_for_an_event_of_another(runtime: Runtime) -> None:
    one, other, event = runtime.stream(), runtime.stream(), runtime.event()
    block, copied = runtime.block(8), runtime.block(8)
    runtime("Memset", block, 0, ctypes.c_size_t(8))
    gate = Gate(runtime, one)
    runtime("MemsetAsync", block, 1, ctypes.c_size_t(8), one)
    runtime("EventRecord", event, one)
    runtime("StreamWaitEvent", other, event, 0)
    runtime.copy(copied, block, 8, other)
    assert gate.entered.wait(BOUND)
    assert runtime.code("StreamQuery", other) == NOT_READY
    gate.opened.set()
    runtime("StreamSynchronize", other)
    assert ctypes.string_at(copied, 8) == b"\x01" * 8


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_streams_are_independent(vendor: str) -> None:
    program = """
import ctypes, sys
from emulated_vendor import Gate, Runtime
runtime = Runtime(sys.argv[1])
held, free = runtime.stream(), runtime.stream()
gate = Gate(runtime, held)
block = runtime.block(8)
runtime("MemsetAsync", block, 1, ctypes.c_size_t(8), free)
runtime("StreamSynchronize", free)
runtime("MemsetAsync", block, 2, ctypes.c_size_t(8), None)
runtime("StreamSynchronize", None)
print(ctypes.string_at(block, 8) == b"\\x02" * 8)
gate.opened.set()
runtime("DeviceSynchronize")
"""
    assert run(program, vendor, HETCOMM_EMULATED_HOSTILE="") == "True\n"


def test_a_destroyed_stream_finishes_and_is_then_unknown(runtime: Runtime) -> None:
    stream, event = runtime.stream(), runtime.event()
    gate = Gate(runtime, stream)
    runtime("EventRecord", event, stream)
    runtime("StreamDestroy", stream)
    assert runtime.code("StreamQuery", stream) == INVALID_HANDLE
    assert runtime.code("GetLastError") == INVALID_HANDLE
    assert runtime.code("GetLastError") == 0
    gate.opened.set()
    runtime("EventSynchronize", event)


def test_a_stream_waits_for_a_word(runtime: Runtime) -> None:
    runtime("SetDevice", 0)  # the driver needs a context
    stream, event = runtime.stream(), runtime.event()
    word = ctypes.cast(runtime.block(4, pinned=True), ctypes.POINTER(ctypes.c_uint32))
    word[0] = 0
    if runtime.vendor == "nvidia":
        wait = runtime.library.cuStreamWaitValue32_v2
        assert wait(stream, ctypes.c_ulonglong(ctypes.addressof(word.contents)), 3, 0) == 0
    else:
        wait = runtime.library.hipStreamWaitValue32
        assert wait(stream, word, 3, 0, ctypes.c_uint32(0xFFFFFFFF)) == 0
    runtime("EventRecord", event, stream)
    word[0] = 2
    assert runtime.code("EventQuery", event) == NOT_READY
    word[0] = 4
    runtime("EventSynchronize", event)


def test_only_pinned_memory_belongs_to_the_host(runtime: Runtime) -> None:
    runtime("SetDevice", 3)
    device, pinned = runtime.block(100), runtime.block(100, pinned=True)
    runtime("SetDevice", 5)
    plain = ctypes.create_string_buffer(100)
    seen = [runtime.attributes(pointer) for pointer in (device, pinned, plain)]
    assert [(a.type, a.device) for a in seen] == [(2, 3), (1, 3), (2, 5)]
    assert runtime.attributes(ctypes.c_void_p((pinned.value or 0) + 99)).type == 1
    runtime("HostRegister", plain, ctypes.c_size_t(100), 0)
    assert runtime.attributes(plain).type == 1
    runtime("HostUnregister", plain)
    assert runtime.attributes(plain).type == 2
    assert runtime.code("Free", pinned) == INVALID_VALUE
    runtime("FreeHost", pinned)
    runtime("Free", device)
    runtime("SetDevice", 0)


def test_devices_have_names_and_addresses(runtime: Runtime) -> None:
    count, properties = ctypes.c_int(), ctypes.create_string_buffer(4096)
    runtime("GetDeviceCount", ctypes.byref(count))
    assert count.value == 8
    suffix = "R0600" if runtime.vendor == "amd" else ""
    runtime("GetDeviceProperties" + suffix, properties, 2)
    assert properties.value == f"Emulated {runtime.vendor.upper()} GPU".encode()
    bus = ctypes.create_string_buffer(16)
    runtime("DeviceGetPCIBusId", bus, 16, 2)
    assert bus.value == b"0000:12:00.0"
    assert runtime.code("SetDevice", 8) == INVALID_DEVICE
    library = runtime.library.hetcomm_emulated_vendor
    library.restype = ctypes.c_char_p
    assert library() == runtime.vendor.encode()


COPY = """
import ctypes, sys, time
from emulated_vendor import Runtime
runtime, size = Runtime(sys.argv[1]), 32 << 20
streams = [runtime.stream(), runtime.stream()]
device, pinned = runtime.block(size), runtime.block(size, pinned=True)
second, other = runtime.block(size), runtime.block(size, pinned=True)
for block in (device, pinned, second, other):
    runtime("Memset", block, 1, ctypes.c_size_t(size))
start = time.monotonic()
for part in range(int(sys.argv[2])):  # every direction carries `size` bytes
    target, source = ((device, pinned), (other, second))[part]
    runtime.copy(target, source, size, streams[part])
enqueued = time.monotonic() - start
for stream in streams:
    runtime("StreamSynchronize", stream)
print(enqueued, time.monotonic() - start)
"""


def copies(vendor: str, directions: int, **environment: str) -> list[float]:
    """Seconds until all copies were enqueued, and until all were complete."""
    environment["HETCOMM_EMULATED_HOSTILE"] = ""  # which takes time of its own
    return [float(word) for word in run(COPY, vendor, str(directions), **environment).split()]


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("directions", [1, 2])
def test_copies_take_the_rate_of_their_engine(vendor: str, directions: int) -> None:
    # The host does not wait. A copy takes 0.5 s at this rate, and the engines work in parallel.
    quickest = undisturbed(
        lambda: copies(vendor, directions, HETCOMM_EMULATED_COPY_RATE="64M"),
        lambda took: took[0] < 0.25 and took[1] < 0.9,
    )
    assert quickest[1] > 0.49


def test_copies_without_a_rate_are_not_delayed() -> None:
    undisturbed(lambda: copies("nvidia", 1), lambda took: took[1] < 0.25)


def test_latency_is_added_to_every_copy() -> None:
    program = """
import time
from emulated_vendor import Runtime
runtime = Runtime("nvidia")
device, pinned, stream = runtime.block(8), runtime.block(8, pinned=True), runtime.stream()
start = time.monotonic()
for _ in range(10):
    runtime.copy(device, pinned, 8, stream)
runtime("StreamSynchronize", stream)
print(time.monotonic() - start)
"""
    measure = lambda: float(run(program, HETCOMM_EMULATED_LATENCY="10000"))  # noqa: E731
    assert undisturbed(measure, lambda seconds: seconds < 1) >= 0.1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HETCOMM_EMULATED_FAULT": "old_runtime"}, "0 10020"),
        ({"HETCOMM_EMULATED_DEVICES": "0"}, "100 0"),
        ({"HETCOMM_EMULATED_FAULT": "nonsense"}, "3 0"),
        ({"HETCOMM_EMULATED_FAULT": "hang"}, "3 0"),
        ({"HETCOMM_EMULATED_FAULT": "device_error"}, "3 0"),
    ],
)
def test_runtime_faults_are_emulated(environment: dict[str, str], expected: str) -> None:
    program = """
import ctypes
from emulated_vendor import Runtime
runtime = Runtime("nvidia")
version = ctypes.c_int()
print(runtime.code("SetDevice", 0), end=" ")
runtime.code("RuntimeGetVersion", ctypes.byref(version))
print(version.value)
"""
    assert run(program, **environment).strip() == expected


def test_a_forked_child_and_a_host_function_get_errors() -> None:
    program = """
import os
from emulated_vendor import HostFunction, Runtime
runtime, inside = Runtime("nvidia"), []
function = HostFunction(lambda _: inside.append(runtime.code("SetDevice", 0)))
runtime("LaunchHostFunc", None, function, None)
runtime("StreamSynchronize", None)
child = os.fork()
if child == 0:
    os._exit(runtime.code("SetDevice", 0))
print(inside[0], os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(program).strip() == "800 3"
