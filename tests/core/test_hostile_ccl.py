"""A hostile emulated collective library: orders of launches, late connections and errors, handles
that are gone."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from emulated_ccl import BOUND, OPS, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, Ccl, members

HOSTILE = "HETCOMM_EMULATED_HOSTILE"


def until(path: Path) -> None:
    deadline = time.monotonic() + BOUND
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def split(ccl: Ccl, color: int, rank: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    ccl("CommSplit", ccl.communicator, color, rank, ctypes.byref(made), None)
    return made


def call_in_order(ccl: Ccl, communicators: list[ctypes.c_void_p]) -> str:
    """Calls on a stream of its own for each communicator. Returns the text of the error, or ""."""
    arrays = [np.ones(1000, "float32") for _ in communicators]
    streams = [ccl.runtime.stream() for _ in communicators]
    for communicator, array, stream in zip(communicators, arrays, streams, strict=True):
        ccl.communicator, ccl.stream = communicator, stream
        ccl.reduce_call("AllReduce", array, array, array.size, OPS["sum"])
    events = [ccl.runtime.event() for _ in streams]
    for event, stream in zip(events, streams, strict=True):
        ccl.runtime("EventRecord", event, stream)
    text = ""
    deadline = time.monotonic() + BOUND
    while not text and any(ccl.runtime.code("EventQuery", event) for event in events):
        assert time.monotonic() < deadline
        for communicator in communicators:
            ccl.communicator = communicator
            if state := ccl.state():
                assert state in (SYSTEM_ERROR, REMOTE_ERROR)
                text = ccl.text()
        time.sleep(0.001)
    for communicator in communicators:
        ccl("CommAbort", communicator)
    return text


def two_orders(crossed: bool, ccl: Ccl, rank: int, size: int) -> str:
    communicators = [ccl.communicator, split(ccl, 0, rank)]
    return call_in_order(ccl, communicators[:: -1 if crossed and rank == 1 else 1])


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_different_orders_of_launches_are_named(vendor: str) -> None:
    scenario = functools.partial(two_orders, True)
    texts = members(2, scenario, vendor, **{HOSTILE: "order,bound:1"})
    found = [text for text in texts if "in different orders" in text]
    assert found, texts
    for text in found:
        lines = re.findall(r"device (\d) of process \d+: (.*)", text)
        assert sorted(device for device, _ in lines) == ["0", "1"], text
        orders = []
        for device, launches in lines:
            rows = re.findall(r"all_reduce #1 of communicator (\w+) as rank (\d) of 2", launches)
            assert [rank for _, rank in rows] == [device] * 2, text
            orders.append([communicator for communicator, _ in rows])
        assert orders[0] == orders[1][::-1], text


def test_one_order_of_launches_ends() -> None:
    scenario = functools.partial(two_orders, False)
    assert members(2, scenario, **{HOSTILE: "order,bound:1,delays:4"}) == ["", ""]


def test_orders_do_not_matter_without_the_part() -> None:
    assert members(2, functools.partial(two_orders, True), **{HOSTILE: "poison"}) == ["", ""]


def circle(ccl: Ccl, rank: int, size: int) -> str:
    """Three communicators of two members each. Every member launches the one that it shares with
    the next member before the one that it shares with the member before."""
    after, before = (rank + 1) % size, (rank - 1) % size
    made = {}
    for pair in [(0, 1), (1, 2), (0, 2)]:
        inside = rank in pair
        child = split(ccl, 0 if inside else -1, rank)
        if inside:
            made[pair] = child
    names = [tuple(sorted((rank, other))) for other in (after, before)]
    return call_in_order(ccl, [made[name] for name in names])  # type: ignore[index]


def test_a_circle_of_three_devices_is_noticed() -> None:
    texts = members(3, circle, **{HOSTILE: "order,bound:1"})
    assert any(text.count("as rank") == 6 and text.count("device") >= 3 for text in texts), texts


def first_call(folder: Path, eager: bool, ccl: Ccl, rank: int, size: int) -> bool:
    """Whether member 0's first call returns before member 1 makes it."""
    values = np.ones(10, "float32")
    called = folder / "called"
    if rank == 1:
        until(called)
        ccl.reduce_call("AllReduce", values, values, 10, OPS["sum"])
        ccl.synchronize()
        return True
    call = threading.Thread(
        target=lambda: ccl.reduce_call("AllReduce", values, values, 10, OPS["sum"])
    )
    call.start()
    call.join(BOUND if eager else 0.2)
    returned = not call.is_alive()
    called.touch()
    call.join(BOUND)
    ccl.synchronize()
    assert (values == size).all()
    second = np.ones(10, "float32")
    ccl.reduce_call("AllReduce", second, second, 10, OPS["sum"])  # connected by now
    return returned


@pytest.mark.parametrize(
    ("parts", "environment", "eager"),
    [
        ("lazy", {}, False),
        ("lazy,sync", {}, False),
        ("lazy", {"NCCL_RUNTIME_CONNECT": "1"}, False),
        ("lazy", {"NCCL_RUNTIME_CONNECT": "0"}, True),
        ("lazy", {"HETCOMM_EMULATED_FAULT": "version:22105"}, True),
        ("sync", {}, True),
    ],
)
def test_the_first_call_connects(
    tmp_path: Path, parts: str, environment: dict[str, str], eager: bool
) -> None:
    scenario = functools.partial(alone_first_call, tmp_path, eager)
    assert members(2, scenario, **{HOSTILE: parts}, **environment)[0] == eager


def alone_first_call(folder: Path, eager: bool, ccl: Ccl, rank: int, size: int) -> bool:
    returned = first_call(folder, eager, ccl, rank, size)
    if rank == 1:  # the second call of member 0
        values = np.ones(10, "float32")
        ccl.reduce_call("AllReduce", values, values, 10, OPS["sum"])
    ccl.synchronize()
    return returned


def set_too_late(folder: Path, ccl: Ccl, rank: int, size: int) -> bool:
    """The process has made a communicator before the variable is set."""
    os.environ["NCCL_RUNTIME_CONNECT"] = "0"
    ccl.communicator = split(ccl, 0, rank)
    return alone_first_call(folder, False, ccl, rank, size)


def test_parameters_are_read_once(tmp_path: Path) -> None:
    scenario = functools.partial(set_too_late, tmp_path)
    assert members(2, scenario, **{HOSTILE: "lazy"})[0] is False


def messages(folder: Path, ccl: Ccl, rank: int, size: int) -> bool:
    """A message connects inside the call, even if collectives have connected in set-up."""
    values = np.full(10, rank, "float32")
    tried = folder / "tried"
    if rank == 1:
        until(tried)
        ccl.message("Recv", values, 0)
        ccl.synchronize()
        return bool((values == 0).all())
    call = threading.Thread(target=lambda: ccl.message("Send", values, 1))
    call.start()
    call.join(0.2)
    waited = call.is_alive()
    tried.touch()
    call.join(BOUND)
    ccl.synchronize()
    return waited


def test_the_first_message_connects(tmp_path: Path) -> None:
    scenario = functools.partial(messages, tmp_path)
    environment = {HOSTILE: "lazy", "NCCL_RUNTIME_CONNECT": "0"}
    assert members(2, scenario, **environment) == [True, True]


def group_of_two(ccl: Ccl, rank: int, size: int) -> bool:
    """Nothing of a group starts before its outermost end, and an error inside drops all of it."""
    parent, child = ccl.communicator, split(ccl, 0, rank)
    first, second = np.ones(10, "float32"), np.ones(10, "float32")
    ccl("GroupStart")
    ccl.reduce_call("AllReduce", first, first, 10, OPS["sum"])
    ccl("GroupStart")
    ccl.communicator = child
    ccl.reduce_call("AllReduce", second, second, 10, OPS["sum"])
    ccl("GroupEnd")
    ccl.runtime("StreamSynchronize", ccl.stream)
    nothing = bool((first == 1).all() and (second == 1).all())
    ccl("GroupEnd")
    ccl.synchronize()
    right = bool((first == size).all() and (second == size).all())
    ccl("GroupStart")
    ccl.reduce_call("AllReduce", first, first, 10, OPS["sum"])
    assert ccl.code("AllReduce", None, None, ctypes.c_size_t(1), 99, 0, child, ccl.stream) != 0
    dropped = ccl.code("GroupEnd") != SUCCESS
    ccl.synchronize()
    ccl.communicator = parent
    return nothing and right and dropped and bool((first == size).all())


def test_a_group_starts_at_its_end() -> None:
    environment = {HOSTILE: "order,lazy,sync,delays:2"}
    assert members(2, group_of_two, **environment) == [True, True]


def late_error(ccl: Ccl, rank: int, size: int) -> tuple[int, float]:
    values = np.ones(10, "float32")
    begin = time.monotonic()
    ccl.reduce_call("AllReduce", values, values, 10, OPS["sum"])
    while (state := ccl.state()) == SUCCESS:
        assert time.monotonic() < begin + BOUND
        time.sleep(0.001)
    ccl("CommAbort", ccl.communicator)
    return state, time.monotonic() - begin


def test_an_asynchronous_error_shows_late() -> None:
    fault = {"HETCOMM_EMULATED_FAULT": "async_error:0"}
    for state, seconds in members(2, late_error, **{HOSTILE: "late"}, **fault):
        assert state == REMOTE_ERROR and seconds >= 0.1


DEAD_HANDLES = """
import ctypes, os, sys, threading, time
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
from emulated_ccl import Ccl
ccl = Ccl(sys.argv[1])
assert ccl.connect(ccl.unique_id(), 1, 0) == 0
"""
TWICE = 'ccl("CommAbort", ccl.communicator)\nccl("CommAbort", ccl.communicator)\n'
DESTROYED = 'ccl("CommDestroy", ccl.communicator)\nccl.state()\n'
INSIDE = """
call = threading.Thread(target=lambda: ccl.move_call("Broadcast", values, values, 4, 0))
import numpy as np
values = np.ones(4, "float32")
call.start()
call.join(3)
assert call.is_alive()
ccl("CommDestroy", ccl.communicator)
"""


@pytest.mark.parametrize(
    ("program", "fault", "words"),
    [
        (TWICE, "", "a call for a communicator that was destroyed, aborted or never made"),
        (DESTROYED, "", "a call for a communicator that was destroyed, aborted or never made"),
        (INSIDE, "call_hang:0", "ncclCommDestroy while another thread is in a call"),
    ],
)
def test_a_handle_that_is_gone_ends_the_process(program: str, fault: str, words: str) -> None:
    for parts, dies in (("handles", True), ("poison", False)):
        if not dies and fault:
            continue  # hangs, as the call does
        done = subprocess.run(
            [sys.executable, "-P", "-c", DEAD_HANDLES + program, "nvidia"],
            env={
                **os.environ,
                "PYTHONPATH": f"{os.path.dirname(__file__)}:{os.pathsep.join(sys.path)}",
                HOSTILE: parts,
                **({"HETCOMM_EMULATED_FAULT": fault} if fault else {}),
            },
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        assert (done.returncode < 0) == dies, done.stderr
        assert (words in done.stderr) == dies, done.stderr
