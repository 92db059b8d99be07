"""How often hetcomm calls the runtime and the native library for an all_reduce."""

from __future__ import annotations

import json

import pytest
from emulated_vendor import path, run

VARIABLES = ("HETCOMM_CUDA_LIBRARY", "HETCOMM_NCCL_LIBRARY")
PROGRAM = """
import ctypes, json, os, sys, threading
import numpy as np
from communicators import BOUND, results_of, run_ranks
from hetcomm import _core
from hetcomm._core import Collective, Dtype, ReduceOp, Spec

hosts, elements, CALLS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
vendors = [{"x": "nvidia", "y": "cpu"}[host] for host in hosts]
together = threading.Barrier(len(hosts))
library = ctypes.CDLL(os.environ["HETCOMM_CUDA_LIBRARY"])
library.hetcomm_emulated_calls.restype = ctypes.c_char_p
counts = {}

def program(communicator):
    data, stream = np.ones(elements, np.int32), None
    if vendors[communicator.rank] == "nvidia":
        stream = _core.Device.open("nvidia", communicator.rank).make_stream()
    spec = Spec(Collective.all_reduce, Dtype.int32, ReduceOp.sum, count=elements, in_place=True)

    def call():
        work = communicator.submit(spec, data, stream=stream)
        if stream is not None:
            work.block_stream(stream)
        return work

    for work in [call() for _ in range(2 * CALLS)]:  # makes all events
        work.wait()
    together.wait(BOUND)
    if communicator.rank == 0:
        library.hetcomm_emulated_calls()
    together.wait(BOUND)
    for work in [call() for _ in range(CALLS)]:
        work.wait()
    together.wait(BOUND)
    if communicator.rank == 0:
        for line in library.hetcomm_emulated_calls().decode().splitlines():
            name, number = line.split()
            counts[name] = int(number) / CALLS
    together.wait(BOUND)
    call().wait()

results_of(run_ranks(hosts, program, vendors=vendors, timeout=60))
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


def calls_of(hosts: str, elements: int, calls: int) -> dict[str, float]:
    """By function: calls of all ranks in one all_reduce of int32."""
    settings = dict.fromkeys(VARIABLES, str(path("nvidia")))
    settings |= {"HETCOMM_EMULATED_CALLS": "1", "HETCOMM_EMULATED_HOSTILE": "poison"}
    program = run(PROGRAM, hosts, str(elements), str(calls), timeout=120, **settings)
    counts: dict[str, float] = json.loads(program)
    print(counts)
    return counts


@pytest.mark.needs("emulated vendors")
def test_an_all_reduce_of_one_island_makes_few_calls() -> None:
    counts = {name: number / 2 for name, number in calls_of("xx", 1000, 50).items()}
    assert counts["ncclAllReduce"] == 1
    for name, most in MOST.items():
        assert counts[name] <= most, counts
    assert counts.keys() <= MOST.keys() | LOOKS | BEFORE, counts


@pytest.mark.needs("emulated vendors")
def test_an_island_behind_the_bridge_makes_one_call_for_each_chunk_and_phase() -> None:
    """The last chunk is odd: its shards are equal but for a rest, which has a call of its own."""
    members, elements = 7, 4_000_001
    counts = calls_of("x" * members + "y", elements, 1)
    chunks = 4 * elements // (512 << 10)
    for name in ("ncclReduceScatter", "ncclAllGather"):
        assert chunks - 1 <= counts[name] / members <= chunks + 1, counts
    assert counts.get("ncclReduce", 0) <= members and counts.get("ncclBroadcast", 0) <= members
