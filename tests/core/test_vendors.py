"""Ranks of several vendors in one communicator, on the emulated vendor libraries."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from communicators import (
    BOUND,
    COLLECTIVES,
    REDUCTIONS,
    Call,
    contribution,
    native_spec,
    results_of,
    run_ranks,
)
from devices import Gate, finish, until
from islands import FACTOR

import hetcomm
from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec

VENDORS = {"n": "nvidia", "a": "amd", "c": "cpu"}
# The vendor and the host of each rank.
LAYOUTS = [
    ("nn", "xx"),
    ("na", "xx"),
    ("nc", "xy"),
    ("nncc", "xxyy"),
    ("nanac", "xyxyz"),
    ("nnaa", "xxxx"),
    ("nnaac", "xxyyy"),
    ("cnanna", "xyzyyz"),
    ("nnn", "xyx"),  # one island on two hosts
    ("nnaca", "xyxzy"),
]


@pytest.mark.usefixtures("emulated_vendors")
@pytest.mark.parametrize(("vendors", "hosts"), LAYOUTS)
def test_every_collective_matches_numpy(vendors: str, hosts: str) -> None:
    def program(communicator: Communicator) -> None:
        rng = random.Random(vendors)
        for seed in range(6):
            for collective in COLLECTIVES:
                spec = native_spec(rng, len(hosts), collective.name)
                Call(communicator, spec, seed, rng.random() < 0.5).check()

    results_of(run_ranks(hosts, program, vendors=[VENDORS[letter] for letter in vendors]))


@pytest.mark.usefixtures("emulated_vendors")
@pytest.mark.parametrize("dtype", list(Dtype.__members__.values()), ids=lambda dtype: dtype.name)
def test_every_dtype_and_operation_works_between_vendors(dtype: Dtype) -> None:
    """Interleaved: two NVIDIA ranks, two AMD ranks and one of the CPU."""

    def program(communicator: Communicator) -> None:
        seed = 0
        for collective in COLLECTIVES:
            for op in ReduceOp.__members__.values():
                reduces = collective.name in REDUCTIONS
                if not (_core.ccl_reduces(dtype, op) if reduces else op == ReduceOp.sum):
                    continue
                if collective.name == "barrier" or (reduces and dtype == Dtype.boolean):
                    continue
                seed += 1
                factor = FACTOR if op == ReduceOp.premul_sum else 1
                places = (
                    [False] if collective.name == "reduce_scatter" or not reduces else [False, True]
                )
                for in_place in places:
                    spec = Spec(
                        collective, dtype, op, root=2, count=777, in_place=in_place, factor=factor
                    )
                    Call(communicator, spec, seed, True).check()

    results_of(run_ranks("xyxyz", program, vendors=["nvidia", "amd", "nvidia", "amd", "cpu"]))


@pytest.mark.usefixtures("emulated_vendors")
@pytest.mark.parametrize("vendors", ["na", "an", "nc", "cn", "nn"])
@pytest.mark.parametrize("count", [0, 1, 1000, 700_001])
def test_messages_between_vendors_arrive(vendors: str, count: int) -> None:
    def program(communicator: Communicator) -> None:
        spec = Spec(Collective.broadcast, Dtype.int64, count=count, in_place=True)
        sent = [contribution(spec, 0, 2, tag) for tag in range(4)]
        if communicator.rank == 0:
            for work in [communicator.send(data, Dtype.int64, 1, 7) for data in sent]:
                work.wait()
            return
        got = [np.zeros(count, np.int64) for _ in sent]
        works = [communicator.recv(data, Dtype.int64, 0, 7) for data in got]
        for work, data, wanted in zip(works, got, sent, strict=True):
            work.wait()
            assert (data == wanted).all()

    results_of(run_ranks("xy", program, vendors=[VENDORS[letter] for letter in vendors]))


def _in_order(vendors: str, calls: int, together: bool) -> Callable[[Communicator], None]:
    """A program whose stream fills the buffers behind a gate, and reads the results. The gate opens
    after all calls were submitted. `together`: the stream is told to wait before the gate opens, so
    any wait of the host would hang."""
    count = 5000

    def program(communicator: Communicator) -> None:
        rank = communicator.rank
        device = _core.Device.open(VENDORS[vendors[rank]], rank)
        stream = device.make_stream()
        source = [np.full(count, rank + call, np.int32) for call in range(calls)]
        buffers = [np.zeros(count, np.int32) for _ in range(calls)]
        results = [np.zeros(count, np.int32) for _ in range(calls)]
        spec = Spec(Collective.all_reduce, Dtype.int32, ReduceOp.sum, count=count, in_place=True)
        gate, works = Gate(device, stream), []

        def read(call: int) -> None:
            works[call].block_stream(stream)
            device.copy(results[call].ctypes.data, buffers[call].ctypes.data, 4 * count, stream)

        for call in range(calls):
            target = buffers[call].ctypes.data
            device.copy(target, source[call].ctypes.data, 4 * count, stream)
            works.append(communicator.submit(spec, buffers[call], stream=stream))
            if together:
                read(call)
        assert not any(work.done() for work in works)
        gate.open()
        if not together:
            for call in range(calls):
                read(call)
        for work in works:
            work.wait()
        finish(device, stream)
        total = sum(range(len(vendors)))
        for call, result in enumerate(results):
            assert (result == total + len(vendors) * call).all()

    return program


@pytest.mark.usefixtures("emulated_vendors")
def test_the_host_does_not_wait_for_calls_of_a_native_library() -> None:
    calls = 60  # fewer than an engine keeps in its stream at a time
    results_of(run_ranks("xx", _in_order("nn", calls, True), vendors=["nvidia"] * 2))


@pytest.mark.usefixtures("emulated_vendors")
@pytest.mark.parametrize(("vendors", "hosts"), [("nn", "xx"), ("na", "xy"), ("nna", "xxy")])
def test_streams_order_collectives(vendors: str, hosts: str) -> None:
    program = _in_order(vendors, 100, False)  # more than an engine keeps in its stream at a time
    results_of(run_ranks(hosts, program, vendors=[VENDORS[letter] for letter in vendors]))


@pytest.mark.usefixtures("emulated_vendors")
@pytest.mark.parametrize(("vendors", "hosts"), [("nn", "xx"), ("na", "xy"), ("nna", "xxy")])
def test_streams_continue_after_a_failed_operation(vendors: str, hosts: str) -> None:
    """A rank never comes. A stream that waits for a call of a native library then continues. The
    host waits for other calls, and gets their failure."""
    count = 5000
    everyone_waits = threading.Barrier(len(vendors) - 1)
    native = hosts == "xx"

    def program(communicator: Communicator) -> None:
        rank = communicator.rank
        if rank == len(vendors) - 1:
            return
        device = _core.Device.open(VENDORS[vendors[rank]], rank)
        stream, over = device.make_stream(), device.make_event()
        spec = Spec(Collective.all_reduce, Dtype.int32, ReduceOp.sum, count=count, in_place=True)
        works = [communicator.submit(spec, np.ones(count, np.int32)) for _ in range(3)]
        if native:
            for work in works:
                work.block_stream(stream)
            device.record(over, stream)
            assert not device.passed(over)
        everyone_waits.wait(BOUND)
        communicator.abort("planted")
        if not native:
            for work in works:
                with pytest.raises(hetcomm.AbortedError, match="planted"):
                    work.block_stream(stream)
            device.record(over, stream)
        until(lambda: device.passed(over))
        for work in works:
            with pytest.raises(hetcomm.AbortedError, match="planted"):
                work.wait()
        with pytest.raises(hetcomm.AbortedError, match="planted"):
            communicator.submit(spec, np.ones(count, np.int32))
            communicator.submit(spec, np.ones(count, np.int32)).wait()

    results_of(run_ranks(hosts, program, vendors=[VENDORS[letter] for letter in vendors]))


@pytest.mark.usefixtures("emulated_vendors")
def test_memory_of_copies_that_never_end_is_kept() -> None:
    """The caller's stream stands still, so the copies behind it do too. The operation fails at
    once. Its buffers are released only after the stream continues and the copies end."""
    count = 300_000
    kept: list[Any] = []
    gates: list[Any] = []
    everyone_submitted = threading.Barrier(2)

    def program(communicator: Communicator) -> None:
        rank = communicator.rank
        device = _core.Device.open(("nvidia", "amd")[rank], rank)
        stream = device.make_stream()
        gate = Gate(device, stream)
        data = np.ones(count, np.int32)
        kept.append(weakref.ref(data))
        gates.append(gate)
        spec = Spec(Collective.all_reduce, Dtype.int32, ReduceOp.sum, count=count, in_place=True)
        work = communicator.submit(spec, data, stream=stream)
        everyone_submitted.wait(BOUND)
        if rank == 0:
            communicator.abort("planted")
        with pytest.raises(hetcomm.AbortedError, match="planted"):
            work.wait()

    results_of(run_ranks("xy", program, vendors=["nvidia", "amd"]))
    gc.collect()
    assert all(data() is not None for data in kept)
    for gate in gates:
        gate.open()
