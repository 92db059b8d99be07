"""hetcomm on runtimes that do all that the vendors' documentation permits: see docs/devices.md.

Ranks are threads of a process with a hostile runtime. Its calls fail, rather than hang, once they
have waited for 5 s.
"""

from __future__ import annotations

import pytest
from emulated_vendor import path, run

LIBRARIES = {
    "HETCOMM_CUDA_LIBRARY": "nvidia", "HETCOMM_NCCL_LIBRARY": "nvidia",
    "HETCOMM_HIP_LIBRARY": "amd", "HETCOMM_RCCL_LIBRARY": "amd",
}  # fmt: skip
BEGIN = """
import sys, threading, time
import numpy as np
from communicators import BOUND, results_of, run_ranks
from devices import Gate, finish
from hetcomm import _core
from hetcomm._core import Collective, Dtype, ReduceOp, Spec

VENDORS = {"n": "nvidia", "a": "amd", "c": "cpu"}
hosts, letters = sys.argv[1:3]
vendors = [VENDORS[letter] for letter in letters]

def device_of(communicator):
    rank = communicator.rank
    return None if vendors[rank] == "cpu" else _core.Device.open(vendors[rank], rank)

def sum_of(count):
    return Spec(Collective.all_reduce, Dtype.int32, ReduceOp.sum, count=count, in_place=True)

def run_all(program):
    results_of(run_ranks(hosts, program, vendors=vendors, timeout=20))
    print("right")
"""


def hostile(program: str, parts: str, hosts: str, letters: str, **environment: str) -> None:
    settings = {variable: str(path(vendor)) for variable, vendor in LIBRARIES.items()}
    settings["HETCOMM_EMULATED_HOSTILE"] = f"{parts},bound:20"
    done = run(BEGIN + program, hosts, letters, timeout=120, **settings, **environment)
    assert done == "right\n"


PARTS = ["queues:1", "queues:2", "queues:8", "sync", "queues:1,sync,poison,delays:3"]
LAYOUTS = [("xx", "nn"), ("xy", "na"), ("xy", "nc"), ("xxy", "nna")]

# Every call takes more scratch and staging than the calls before, so it allocates.
GROWING_CALLS = """
def program(communicator):
    device, rank, size = device_of(communicator), communicator.rank, communicator.size
    counts = [5000, 300_001, 11, 700_003]
    source = [np.full(count, rank + call, np.int32) for call, count in enumerate(counts)]
    buffers = [np.zeros(count, np.int32) for count in counts]
    results = [np.zeros(count, np.int32) for count in counts]
    streams = [device.make_stream() for _ in counts] if device else []
    for call, count in enumerate(counts):
        mine, buffer, result = source[call], buffers[call], results[call]
        if device is None:
            communicator.submit(sum_of(count), mine).wait()
            result[:] = mine
            continue
        stream = streams[call]
        device.copy(buffer.ctypes.data, mine.ctypes.data, 4 * count, stream)
        work = communicator.submit(sum_of(count), buffer, stream=stream)
        work.block_stream(stream)
        device.copy(result.ctypes.data, buffer.ctypes.data, 4 * count, stream)
    for stream in streams:
        finish(device, stream)
    for call, result in enumerate(results):
        assert (result == sum(range(size)) + size * call).all(), call

run_all(program)
"""


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(("hosts", "letters"), LAYOUTS)
def test_a_stream_that_waits_for_an_operation_holds_up_no_other(
    parts: str, hosts: str, letters: str
) -> None:
    hostile(GROWING_CALLS, parts, hosts, letters)


# Rank 0 waits for its receives before rank 1 sends, and its sends share queues with that wait.
CROSSED_MESSAGES = """
def program(communicator):
    device, rank, peer = device_of(communicator), communicator.rank, 1 - communicator.rank
    stream, other = device.make_stream(), device.make_stream()
    sent, got = np.full(200_000, rank, np.int32), np.full(200_000, -1, np.int32)
    receive = communicator.recv(got, Dtype.int32, peer, stream=stream)
    send = communicator.send(sent, Dtype.int32, peer, stream=other)
    for work, mine in ((receive, stream), (send, other)):
        work.block_stream(mine)
    result = np.zeros_like(got)
    device.copy(result.ctypes.data, got.ctypes.data, got.nbytes, stream)
    finish(device, stream)
    assert (result == peer).all()

run_all(program)
"""


@pytest.mark.parametrize("parts", PARTS)
def test_crossed_messages_end_when_streams_share_queues(parts: str) -> None:
    hostile(CROSSED_MESSAGES, parts, "xy", "na")


# After a failure the stream of the caller goes on, and wait() says why.
FAILED_CALLS = """
waits = threading.Barrier(2)
def program(communicator):
    device, rank = device_of(communicator), communicator.rank
    stream = device.make_stream()
    if rank == 1:
        waits.wait(BOUND)
        communicator.abort("planted")
        return
    work = communicator.submit(sum_of(1000), np.ones(1000, np.int32), stream=stream)
    waits.wait(BOUND)
    try:
        work.block_stream(stream)
    except _core.AbortedError as error:
        assert "planted" in str(error)
    else:
        raise AssertionError("the stream was let go on without an error")
    finish(device, stream)

run_all(program)
"""


@pytest.mark.parametrize("parts", PARTS)
def test_no_stream_goes_on_over_the_result_of_a_failed_operation(parts: str) -> None:
    hostile(FAILED_CALLS, parts, "xy", "na")


FAULTY_DEVICE = """
def program(communicator):
    device = device_of(communicator)
    try:
        stream = device.make_stream() if device else None
        for _ in range(200):
            data = np.ones(5000, np.int32)
            work = communicator.submit(sum_of(5000), data, stream=stream)
            if device:
                work.block_stream(stream)
            work.wait()
    except _core.Error as error:
        assert communicator.rank != 0 or "error 700" in str(error), error
        return
    raise AssertionError("the fault of the device did not show")

start = time.monotonic()
run_all(program)
assert time.monotonic() - start < 60
"""


@pytest.mark.parametrize("after", [0, 7, 100])
@pytest.mark.parametrize(("hosts", "letters"), [("xy", "nc"), ("xx", "nn")])
def test_the_fault_of_a_device_ends_every_operation(hosts: str, letters: str, after: int) -> None:
    fault = {"HETCOMM_EMULATED_FAULT": f"device_error:{after}@0"}
    hostile(FAULTY_DEVICE, "queues:2,sync,poison", hosts, letters, **fault)
