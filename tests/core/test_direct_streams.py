"""Direct messages follow the order of the caller's stream, without copies."""

from __future__ import annotations

from emulated_vendor import path, run

# Ranks are threads. The gate opens only after all calls were submitted. Behind the gate a stream
# fills the sent memory, and spoils the received memory unless the receive waits for the stream.
# Then the host waits until the messages are over, and the stream reads what came.
PROGRAM = """
import threading
import numpy as np
from communicators import BOUND, results_of, run_ranks
from devices import Gate, finish
from hetcomm import _core
from hetcomm._core import Dtype

COUNT, CALLS = 300_001, 6
everyone_submitted = threading.Barrier(2)

def program(communicator):
    rank, peer = communicator.rank, 1 - communicator.rank
    assert not communicator.topology.staged(rank, peer)
    device = _core.Device.open("nvidia", rank)
    stream = device.make_stream()
    filled = [np.full(COUNT, 10 * call + rank, np.int32) for call in range(CALLS)]
    sent = [np.full(COUNT, -1, np.int32) for _ in range(CALLS)]
    got = [np.full(COUNT, -2, np.int32) for _ in range(CALLS)]
    spoiled, results = np.full(COUNT, -3, np.int32), [np.zeros(COUNT, np.int32) for _ in sent]
    gate, works = Gate(device, stream), []
    for fill, out, into in zip(filled, sent, got):
        device.copy(out.ctypes.data, fill.ctypes.data, fill.nbytes, stream)
        device.copy(into.ctypes.data, spoiled.ctypes.data, fill.nbytes, stream)
        works.append(communicator.recv(into, Dtype.int32, peer, stream=stream))
        works.append(communicator.send(out, Dtype.int32, peer, stream=stream))
    assert not any(work.done() for work in works)
    everyone_submitted.wait(BOUND)
    gate.open()
    for work in works:
        work.block_stream(stream)
    for into, result in zip(got, results):
        device.copy(result.ctypes.data, into.ctypes.data, into.nbytes, stream)
    for work in works:
        work.wait()
    finish(device, stream)
    for call, result in enumerate(results):
        assert (result == 10 * call + peer).all(), (call, result)

results_of(run_ranks("xx", program, vendors=["nvidia", "nvidia"]))
print("right")
"""


def test_messages_follow_the_callers_stream() -> None:
    settings = {
        "HETCOMM_CUDA_LIBRARY": str(path("nvidia")),
        "HETCOMM_NCCL_LIBRARY": str(path("nvidia")),
        "HETCOMM_EMULATED_DIRECT": "1",
        "HETCOMM_DIRECT_BYTES": "0",
        "HETCOMM_EMULATED_LATENCY": "10000000",  # a copy through pinned memory would be noticed
    }
    assert run(PROGRAM, timeout=120, **settings) == "right\n"
