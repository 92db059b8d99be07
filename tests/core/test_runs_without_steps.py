"""Runs without steps on a device: those of a group of one rank, and of calls without elements.

Such a run is over once the caller's stream has passed the point of the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from communicators import BOUND, results_of, run_ranks
from devices import Gate, until

import hetcomm
from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec

FOREVER = "earlier work in the caller's stream; look at that work, or raise the timeout"
VENDORS = {"n": "nvidia", "a": "amd"}
# The vendor and the host of each rank, and the number of elements of a call.
LAYOUTS = [("n", "x", 1000), ("nn", "xx", 0), ("na", "xy", 0)]

pytestmark = [
    pytest.mark.usefixtures("emulated_vendors"),
    pytest.mark.parametrize(("vendors", "hosts", "count"), LAYOUTS),
]


@dataclass
class Held:
    """A rank whose gate holds the stream of its calls."""

    communicator: Communicator
    device: _core.Device
    stream: int
    gate: Gate
    data: np.ndarray

    def call(self) -> _core.Work:
        """Begins an all_reduce in place."""
        count = self.data.size
        spec = Spec(Collective.all_reduce, Dtype.int32, ReduceOp.sum, count=count, in_place=True)
        return self.communicator.submit(spec, self.data, stream=self.stream)


def run(
    vendors: str, hosts: str, count: int, timeout: float, program: Callable[[Held], None]
) -> None:
    """Calls the program on every rank, and opens the gate after it."""

    def rank(communicator: Communicator) -> None:
        device = _core.Device.open(VENDORS[vendors[communicator.rank]], communicator.rank)
        stream = device.make_stream()
        gate = Gate(device, stream)
        held = Held(communicator, device, stream, gate, np.ones(count, np.int32))
        try:
            program(held)
        finally:
            gate.open()

    names = [VENDORS[letter] for letter in vendors]
    results_of(run_ranks(hosts, rank, vendors=names, timeout=timeout))


def test_they_come_after_the_callers_stream(vendors: str, hosts: str, count: int) -> None:
    def program(held: Held) -> None:
        works = [held.call() for _ in range(20)]
        other, over = held.device.make_stream(), held.device.make_event()
        time.sleep(0.1)
        assert not any(work.done() for work in works)
        held.gate.open()
        for work in works:
            work.block_stream(other)
            work.wait()
        held.device.record(over, other)
        until(lambda: held.device.passed(over))

    run(vendors, hosts, count, BOUND, program)


def test_they_time_out(vendors: str, hosts: str, count: int) -> None:
    def program(held: Held) -> None:
        works = [held.call() for _ in range(5)]
        for work in works:
            with pytest.raises(hetcomm.TimeoutError, match=FOREVER):
                work.wait()

    run(vendors, hosts, count, 0.5, program)


def test_an_abort_ends_them(vendors: str, hosts: str, count: int) -> None:
    def program(held: Held) -> None:
        works = [held.call() for _ in range(5)]
        held.communicator.abort("planted")
        for work in works:
            with pytest.raises(hetcomm.AbortedError, match="planted"):
                work.wait()

    run(vendors, hosts, count, BOUND, program)
