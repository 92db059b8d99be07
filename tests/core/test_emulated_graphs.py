"""Graphs of the emulated runtimes: recorded work, joined streams, forbidden calls."""

from __future__ import annotations

import ctypes
import threading

import pytest
from emulated_vendor import HostFunction, Runtime

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
ILLEGAL_STATE, UNSUPPORTED, INVALIDATED, MERGE = 401, 900, 901, 902
UNMATCHED, UNJOINED, ISOLATION, CAPTURED_EVENT, WRONG_THREAD = 903, 904, 905, 907, 908


@pytest.fixture(params=["nvidia", "amd"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return Runtime(request.param)


def begin(runtime: Runtime, mode: int = THREAD_LOCAL) -> ctypes.c_void_p:
    stream = runtime.stream()
    runtime("StreamBeginCapture", stream, mode)
    return stream


def end(runtime: Runtime, stream: ctypes.c_void_p) -> ctypes.c_void_p:
    """Ends the capture and returns the graph, ready to launch."""
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    runtime("StreamEndCapture", stream, ctypes.byref(graph))
    runtime("GraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    runtime("GraphDestroy", graph)
    return executable


def end_code(runtime: Runtime, stream: ctypes.c_void_p) -> int:
    graph = ctypes.c_void_p()
    code = runtime.code("StreamEndCapture", stream, ctypes.byref(graph))
    assert not graph.value
    return code


def status(runtime: Runtime, stream: ctypes.c_void_p) -> int:
    value = ctypes.c_int(-1)
    runtime("StreamIsCapturing", stream, ctypes.byref(value))
    return value.value


def test_recorded_work_runs_at_each_launch(runtime: Runtime) -> None:
    source, target = runtime.block(64), runtime.block(64)
    runtime("Memset", target, 1, ctypes.c_size_t(64))
    stream = begin(runtime)
    assert status(runtime, stream) == 1
    runtime.copy(target, source, 64, stream)
    graph = end(runtime, stream)
    assert status(runtime, stream) == 0
    runtime("StreamSynchronize", stream)
    assert ctypes.string_at(target, 64) == b"\x01" * 64  # no recorded work has run yet
    for value in (2, 3):
        runtime("MemsetAsync", source, value, ctypes.c_size_t(64), stream)
        runtime("GraphLaunch", graph, stream)
        runtime("StreamSynchronize", stream)
        assert ctypes.string_at(target, 64) == bytes([value]) * 64
    runtime("GraphExecDestroy", graph)
    assert runtime.code("GraphLaunch", graph, stream) == 1


def test_a_stream_joined_by_an_event_keeps_the_recorded_order(runtime: Runtime) -> None:
    stream, other = begin(runtime), runtime.stream()
    fork, join = runtime.event(), runtime.event()
    seen: list[str] = []
    calls = {name: HostFunction(lambda _, name=name: seen.append(name)) for name in "abcd"}
    runtime("LaunchHostFunc", stream, calls["a"], None)
    runtime("EventRecord", fork, stream)
    runtime("StreamWaitEvent", other, fork, 0)
    assert status(runtime, other) == 1
    runtime("LaunchHostFunc", other, calls["b"], None)
    runtime("LaunchHostFunc", stream, calls["c"], None)
    runtime("EventRecord", join, other)
    runtime("StreamWaitEvent", stream, join, 0)
    runtime("LaunchHostFunc", stream, calls["d"], None)
    assert runtime.code("StreamEndCapture", other, ctypes.byref(ctypes.c_void_p())) == UNMATCHED
    graph = end(runtime, stream)
    assert status(runtime, other) == 0
    orders = set()
    for _ in range(4):
        seen.clear()
        runtime("GraphLaunch", graph, stream)
        runtime("StreamSynchronize", stream)
        orders.add("".join(seen))
    assert orders == {"abcd", "acbd"}  # both are allowed by the recording


def test_an_unjoined_stream_is_an_error(runtime: Runtime) -> None:
    block, other, event = runtime.block(8), runtime.stream(), runtime.event()
    stream = begin(runtime)
    runtime("EventRecord", event, stream)
    runtime("StreamWaitEvent", other, event, 0)
    runtime("MemsetAsync", block, 1, ctypes.c_size_t(8), other)
    assert end_code(runtime, stream) == UNJOINED
    assert status(runtime, stream) == status(runtime, other) == 0
    assert end_code(runtime, stream) == ILLEGAL_STATE


def test_waiting_for_unrecorded_work_is_an_error(runtime: Runtime) -> None:
    event, outside = runtime.event(), runtime.stream()
    stream = begin(runtime)
    runtime("StreamWaitEvent", stream, event, 0)  # never recorded, so there is no wait
    runtime("EventRecord", event, outside)
    assert runtime.code("StreamWaitEvent", stream, event, 0) == ISOLATION
    assert status(runtime, stream) == 2
    assert end_code(runtime, stream) == INVALIDATED


def test_captures_are_independent(runtime: Runtime) -> None:
    one, other, event = begin(runtime), begin(runtime), runtime.event()
    runtime("EventRecord", event, one)
    assert runtime.code("StreamWaitEvent", other, event, 0) == MERGE
    assert runtime.code("EventQuery", event) in (UNSUPPORTED, CAPTURED_EVENT)
    for stream in (one, other):
        end_code(runtime, stream)


@pytest.mark.parametrize("call", ["Malloc", "EventQuery", "StreamSynchronize"])
@pytest.mark.parametrize(("mode", "elsewhere"), [(GLOBAL, True), (THREAD_LOCAL, False)])
def test_waiting_calls_are_forbidden_in_a_capture(
    runtime: Runtime, call: str, mode: int, elsewhere: bool
) -> None:
    """On the capturing thread, and with mode "global" on every other thread."""
    arguments = {
        "Malloc": (ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8)),
        "EventQuery": (runtime.event(),),
        "StreamSynchronize": (runtime.stream(),),
    }[call]
    found: list[int] = []

    def relaxed() -> None:
        own = ctypes.c_int(RELAXED)
        runtime("ThreadExchangeStreamCaptureMode", ctypes.byref(own))
        assert own.value == GLOBAL
        found.append(runtime.code(call, *arguments))

    def plain() -> None:
        found.append(runtime.code(call, *arguments))

    stream = begin(runtime, mode)
    for function in (relaxed, plain):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
    assert found == [0, UNSUPPORTED if elsewhere else 0]
    assert runtime.code(call, *arguments) == UNSUPPORTED
    assert end_code(runtime, stream) == INVALIDATED


def test_a_capture_ends_on_its_thread(runtime: Runtime) -> None:
    found: list[int] = []
    stream = begin(runtime)
    thread = threading.Thread(target=lambda: found.append(end_code(runtime, stream)))
    thread.start()
    thread.join()
    assert found == [WRONG_THREAD]
    runtime("GraphExecDestroy", end(runtime, stream))
