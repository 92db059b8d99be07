"""A hostile emulated runtime: shared queues, calls that wait, undefined memory, delays, faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import emulated_vendor
import pytest
from emulated_vendor import run

BEGIN = """
import ctypes, sys, threading, time
from emulated_vendor import Gate, HostFunction, NOT_READY, Runtime
runtime = Runtime(sys.argv[1])
runtime("SetDevice", 0)
opened = threading.Event()
gate = HostFunction(lambda _: opened.wait(30))
ordinary = HostFunction(lambda _: None)
patience = float(sys.argv[2])

def recorded(stream):
    event = runtime.event()
    runtime("EventRecord", event, stream)
    return event

def passed(event):
    return runtime.code("EventQuery", event) == 0

def within(seconds, done):
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.0005)
    return done()

def until(done):
    assert within(20, done)

def later(function):
    # Runs the function on a thread; returns the thread and where the result will be.
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results
"""


# Seconds to look for work that must not come yet, and for work that must come.
HELD, FREE = "0.05", "20"


def hostile(
    program: str, parts: str, vendor: str = "nvidia", patience: str = HELD, **environment: str
) -> str:
    settings = {"HETCOMM_EMULATED_HOSTILE": parts} | environment
    return run(BEGIN + program, vendor, patience, **settings).strip()


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_streams_take_queues_in_turn(vendor: str) -> None:
    program = """
one, two, three = runtime.stream(), runtime.stream(), runtime.stream()
runtime("LaunchHostFunc", one, gate, None)
behind, beside = recorded(three), recorded(two)
until(lambda: passed(beside))
held = not within(patience, lambda: passed(behind))
opened.set()
until(lambda: passed(behind))
print(held)
"""
    assert hostile(program, "queues:2", vendor, HELD) == "True"
    assert hostile(program, "queues:3", vendor, FREE) == "False"


def test_a_wait_for_memory_holds_up_the_streams_behind_it() -> None:
    program = """
one, two = runtime.stream(), runtime.stream()
word = ctypes.cast(runtime.block(4, pinned=True), ctypes.POINTER(ctypes.c_uint32))
word[0] = 0
address = ctypes.c_ulonglong(ctypes.addressof(word.contents))
assert runtime.library.cuStreamWaitValue32_v2(one, address, 1, 0) == 0
behind = recorded(two)
held = not within(patience, lambda: passed(behind))
word[0] = 1
until(lambda: passed(behind))
print(held)
"""
    assert hostile(program, "queues:1", patience=HELD) == "True"
    assert hostile(program, "poison", patience=FREE) == "False"


WAITING = [
    "runtime.block(8, pinned=True)",
    "runtime.block(8)",
    "runtime.stream()",
    "runtime.event()",
    'runtime("HostRegister", ctypes.create_string_buffer(8), ctypes.c_size_t(8), 0)',
    'runtime("LaunchHostFunc", other, ordinary, None)',
]


def test_calls_that_may_wait_for_the_device_do() -> None:
    program = f"""
for call in {WAITING!r}:
    stream, other = runtime.stream(), runtime.stream()
    ordinary = HostFunction(lambda _: None)
    gate = Gate(runtime, stream)
    until(gate.entered.is_set)
    thread, results = later(lambda: eval(call))
    thread.join(patience)
    print(thread.is_alive(), end=" ")
    gate.opened.set()
    thread.join()
    runtime("StreamSynchronize", stream)  # the next round drops the gate
"""
    assert set(hostile(program, "sync", patience=HELD).split()) == {"True"}
    assert set(hostile(program, "queues:8", patience=FREE).split()) == {"False"}


def test_a_gate_of_a_test_holds_up_no_call() -> None:
    program = """
stream, other = runtime.stream(), runtime.stream()
runtime("LaunchHostFunc", stream, gate, None)
thread, results = later(lambda: runtime.block(8))
thread.join(10)
print(thread.is_alive())
opened.set()
"""
    assert hostile(program, "sync,gates") == "False"
    assert hostile(program, "sync,bound:30") == "True"


def test_a_deadlock_is_reported_and_fails_the_call() -> None:
    program = """
stream = runtime.stream()
word = ctypes.cast(runtime.block(4, pinned=True), ctypes.POINTER(ctypes.c_uint32))
word[0] = 0
address = ctypes.c_ulonglong(ctypes.addressof(word.contents))
assert runtime.library.cuStreamWaitValue32_v2(stream, address, 1, 0) == 0
pointer = ctypes.c_void_p()
print(runtime.code("HostAlloc", ctypes.byref(pointer), ctypes.c_size_t(8), 1))
print(runtime.code("StreamSynchronize", stream))
word[0] = 1
runtime("StreamSynchronize", stream)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", BEGIN + program, "nvidia", HELD],
        env={
            **os.environ,
            "PYTHONPATH": f"{os.path.dirname(__file__)}:{emulated_vendor.PACKAGE.parent}",
            "HETCOMM_EMULATED_HOSTILE": "sync,queues:1,bound:1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["702", "702"]
    assert "cudaHostAlloc has waited for work of device 0 for 1 s" in done.stderr
    assert re.search(r"stream 0 'wait for a value in memory' for [1-9][\d.]* s", done.stderr)


def test_the_default_stream_comes_between_blocking_streams() -> None:
    program = """
blocking = ctypes.c_void_p()
runtime("StreamCreate", ctypes.byref(blocking))
free = runtime.stream()
default, after, beside = runtime.event(), runtime.event(), runtime.event()
runtime("LaunchHostFunc", blocking, gate, None)
runtime("EventRecord", default, None)
runtime("EventRecord", after, blocking)
runtime("EventRecord", beside, free)
until(lambda: passed(beside))
held = not within(patience, lambda: passed(default))
opened.set()
until(lambda: passed(default) and passed(after))
opened.clear()
runtime("LaunchHostFunc", None, gate, None)
runtime("EventRecord", after, blocking)
print(held, not within(patience, lambda: passed(after)))
opened.set()
"""
    assert hostile(program, "sync", patience=HELD) == "True True"
    assert hostile(program, "poison", patience=FREE) == "False False"


def test_undefined_memory_holds_a_pattern() -> None:
    program = """
fresh, pinned, stream = runtime.block(64), runtime.block(64, pinned=True), runtime.stream()
print(ctypes.string_at(fresh, 64) == b"\\xa7" * 64, end=" ")
ctypes.memset(fresh, 1, 64)
ctypes.memset(pinned, 2, 64)
runtime.copy(fresh, pinned, 64, stream)  # lasts as long as HETCOMM_EMULATED_LATENCY says
until(lambda: ctypes.string_at(fresh, 64) != b"\\x01" * 64)
print(ctypes.string_at(fresh, 64) == b"\\xa7" * 64, end=" ")
runtime("StreamSynchronize", stream)
print(ctypes.string_at(fresh, 64) == b"\\x02" * 64)
"""
    assert hostile(program, "poison", HETCOMM_EMULATED_LATENCY="3000000") == "True True True"


def test_a_seed_repeats_delays() -> None:
    program = """
stream, took = runtime.stream(), []
for _ in range(200):
    start = time.monotonic()
    runtime("LaunchHostFunc", stream, ordinary, None)
    runtime("StreamSynchronize", stream)
    took.append(time.monotonic() - start)
print(*[number for number, seconds in enumerate(took) if seconds > 0.0011])
"""

    def delayed(seed: int) -> set[str]:
        """A busy machine adds delays of its own, so each of some runs must have the delay."""
        runs = [set(hostile(program, f"delays:{seed}").split()) for _ in range(4)]
        return set.intersection(*runs)

    one, another = delayed(5), delayed(6)
    assert len(one) >= 3 and not one <= another, (one, another)


def test_the_fault_of_a_device_sticks() -> None:
    program = """
stream, event, other = runtime.stream(), runtime.event(), runtime.stream()
target = runtime.block(8)
runtime("Memset", target, 0, ctypes.c_size_t(8))
runtime("MemsetAsync", target, 1, ctypes.c_size_t(8), stream)
runtime("MemsetAsync", target, 2, ctypes.c_size_t(8), stream)
until(lambda: runtime.code("StreamQuery", stream) == 700)
codes = [runtime.code("EventRecord", event, other), runtime.code("DeviceSynchronize"),
         runtime.code("Free", target), runtime.code("StreamDestroy", other)]
print(ctypes.string_at(target, 8) == b"\\x01" * 8, *codes, end=" ")
runtime("SetDevice", 1)
runtime("DeviceSynchronize")
print(runtime.code("Free", runtime.block(8)))
"""
    fault = {"HETCOMM_EMULATED_FAULT": "device_error:2@0"}
    assert hostile(program, "poison", **fault) == "True 700 700 700 700 0"


def test_objects_belong_to_a_device_and_threads_need_a_context() -> None:
    program = """
event = runtime.event()
runtime("SetDevice", 1)
stream = runtime.stream()
print(runtime.code("EventRecord", event, stream), end=" ")
word = ctypes.c_uint32(1)
wait = lambda: runtime.library.cuStreamWaitValue32_v2(
    stream, ctypes.c_ulonglong(ctypes.addressof(word)), 1, 0)
thread, results = later(wait)
thread.join()
print(*results, wait())
"""
    assert hostile(program, "poison") == "400 201 0"


@pytest.mark.parametrize(
    "parts",
    ["queues", "queues:0", "queues:33", "queues:x", "sync:1", "poison,poison", "delays", "nothing",
     "delays:-1", "sync,", ",sync", "bound:0", "order:1", "lazily", "late:2", "handles,handles"],
)  # fmt: skip
def test_unknown_parts_are_refused(parts: str) -> None:
    program = """
import ctypes, sys
from emulated_vendor import Runtime
print(Runtime(sys.argv[1]).code("SetDevice", 0))
"""
    assert run(program, "nvidia", HETCOMM_EMULATED_HOSTILE=parts).strip() == "3"
