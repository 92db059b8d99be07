"""Who is blamed where work of the caller's streams holds up a collective on devices."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from communicators import BOUND, results_of, run_ranks
from devices import Gate

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec


@pytest.mark.usefixtures("emulated_vendors")
@pytest.mark.parametrize("hosts", ["xxx", "xxy"])
@pytest.mark.parametrize("held", [(1,), (0, 2), (0, 1, 2)])
def test_ranks_behind_their_streams_are_blamed_unless_all_are(
    hosts: str, held: tuple[int, ...]
) -> None:
    asked = threading.Barrier(3)

    def rank(communicator: Communicator) -> str:
        device = _core.Device.open("nvidia", communicator.rank)
        stream = device.make_stream()
        gate = Gate(device, stream) if communicator.rank in held else None
        data = np.ones(1000, np.int32)
        spec = Spec(
            Collective.all_reduce, Dtype.int32, ReduceOp.sum, count=data.size, in_place=True
        )
        work = communicator.submit(spec, data, stream=stream)
        text = ""
        try:
            if communicator.rank == 0:
                time.sleep(1.3)  # a wait counts after a second
                text = _core.dump("test")[0]
            asked.wait(BOUND)
        finally:
            if gate:
                gate.open()
        work.wait()
        assert (data == 3).all()
        return text

    text = results_of(run_ranks(hosts, rank, vendors=["nvidia"] * 3))[0]
    for state in text.split("state of group")[1:]:
        blamed = [line for line in state.splitlines() if "likely culprit: " in line]
        expected = held if len(held) < 3 else ()
        assert len(blamed) == len(expected), state
        for line, number in zip(blamed, expected, strict=True):
            assert f"rank {number} on " in line, state
            assert line.endswith(" for earlier work in the caller's stream"), state
        assert ("no rank is a likely culprit" in state) == (not expected), state
