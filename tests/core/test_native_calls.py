"""How often hetcomm calls the runtime and the native library for one all_reduce of one island."""

from __future__ import annotations

import json

import pytest
from emulated_vendor import path, run

VARIABLES = ("HETCOMM_CUDA_LIBRARY", "HETCOMM_NCCL_LIBRARY")
PROGRAM = """
import ctypes, json, os, threading
import numpy as np
from communicators import BOUND, results_of, run_ranks
from hetcomm import _core
from hetcomm._core import Collective, Dtype, ReduceOp, Spec

CALLS = 50
together = threading.Barrier(2)
library = ctypes.CDLL(os.environ["HETCOMM_CUDA_LIBRARY"])
library.hetcomm_emulated_calls.restype = ctypes.c_char_p
counts = {}

def program(communicator):
    device = _core.Device.open("nvidia", communicator.rank)
    stream, data = device.make_stream(), np.ones(1000, np.int32)
    spec = Spec(Collective.all_reduce, Dtype.int32, ReduceOp.sum, count=1000, in_place=True)

    def call():
        work = communicator.submit(spec, data, stream=stream)
        work.block_stream(stream)
        return work

    for work in [call() for _ in range(2 * CALLS)]:  # makes all events
        work.wait()
    together.wait(BOUND)
    if communicator.rank == 0:
        library.hetcomm_emulated_calls()
    together.wait(BOUND)
    for _ in range(CALLS):
        call()
    together.wait(BOUND)
    if communicator.rank == 0:
        for line in library.hetcomm_emulated_calls().decode().splitlines():
            name, number = line.split()
            counts[name] = int(number) / CALLS / 2
    together.wait(BOUND)
    call().wait()

results_of(run_ranks("xx", program, vendors=["nvidia"] * 2, timeout=60))
print(json.dumps(counts))
"""
# Of one call: the caller's stream is filled and the engine's stream waits, the call, its end, the
# caller's stream waits. The first two look whether a graph is being captured.
MOST = {
    "cudaStreamIsCapturing": 2, "cudaEventRecord": 2, "cudaStreamWaitEvent": 2, "ncclAllReduce": 1,
}  # fmt: skip
# Looks at the end, by the thread that progresses. Their number depends on time.
LOOKS = {"cudaEventQuery", "ncclCommGetAsyncError"}
# Before each of the others.
BEFORE = {"cudaGetDevice", "cudaSetDevice", "cudaThreadExchangeStreamCaptureMode"}


@pytest.mark.needs("emulated vendors")
def test_an_all_reduce_of_one_island_makes_few_calls() -> None:
    settings = dict.fromkeys(VARIABLES, str(path("nvidia")))
    settings |= {"HETCOMM_EMULATED_CALLS": "1", "HETCOMM_EMULATED_HOSTILE": "poison"}
    counts = json.loads(run(PROGRAM, timeout=120, **settings))
    print(counts)
    assert counts["ncclAllReduce"] == 1
    for name, most in MOST.items():
        assert counts[name] <= most, counts
    assert counts.keys() <= MOST.keys() | LOOKS | BEFORE, counts
