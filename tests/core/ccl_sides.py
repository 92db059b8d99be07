"""Programs of what one native island is made of: its blocking communicator and registered memory.
See ccl_members.py."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from typing import Any

import numpy as np
from ccl_members import failed, open_members
from islands import run_threads

from hetcomm import _core
from hetcomm._vendors import library_variables


def sums(island: Any, value: float, count: int = 5) -> np.ndarray:
    """This member's result of an all_reduce of an array of `value`."""
    values = np.full(count, value, np.float64)
    row = (-1, -1, values.ctypes.data, values.ctypes.data, count)
    island.start(_core.IslandCall(
        _core.StepKind.island_all_reduce, _core.Dtype.float64, _core.ReduceOp.sum, 0, [row]
    ))  # fmt: skip
    island.wait(30)
    return values


def in_the_stream(vendor: str) -> dict[str, Any]:
    """Whether calls are in the stream when start() returns, before the other member makes them."""
    islands = open_members(vendor, 2)
    held = [np.full(6, 1.0 + member, np.float32) for member in range(2)]

    def call(member: int, kind: str) -> _core.IslandCall:
        base = held[member].ctypes.data
        rows = [(-1, -1, base, base, 6)]
        if kind == "all_to_all":
            rows = [(m, n, base + 4 * n, base + 12 + 4 * m, 1) for m in (0, 1) for n in (0, 1)]
        return _core.IslandCall(
            getattr(_core.StepKind, f"island_{kind}"),
            _core.Dtype.float32,
            _core.ReduceOp.sum,
            0,
            rows,
        )

    launched = {}
    for kind in ("all_reduce", "all_to_all"):
        islands[0].start(call(0, kind))
        launched[kind] = islands[0].launched()
        islands[1].start(call(1, kind))
        run_threads(2, lambda member: islands[member].wait())
    described = islands[0].describe()
    run_threads(2, lambda member: islands[member].close())
    return {"launched": launched, "describe": described, "values": [v.tolist() for v in held]}


def opening(vendor: str, patience: str, spare: str = "") -> list[dict[str, Any]]:
    """How opening an island ends for each of two members, and after how many seconds.

    spare: the process has so many free descriptors.
    """
    unique_id = _core.make_ccl_id(vendor)
    if spare:
        used = max(map(int, os.listdir("/proc/self/fd"))) + 1
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(spare), most))
    ends: list[dict[str, Any]] = [{}] * 2

    def body(member: int) -> None:
        begin = time.monotonic()
        ends[member] = failed(lambda: _core.CclIsland(
            vendor, member, unique_id, member, 2, ranks=[10, 11], timeout=float(patience)
        ))  # fmt: skip
        ends[member]["seconds"] = time.monotonic() - begin

    run_threads(2, body)
    return ends


def late_call(vendor: str) -> list[dict[str, Any]]:
    """A collective whose call into the library does not return on member 1."""
    unique_id = _core.make_ccl_id(vendor)
    ends: list[dict[str, Any]] = [{}] * 2

    def body(member: int) -> None:
        island = _core.CclIsland(
            vendor, member, unique_id, member, 2, ranks=[10, 11], call_bound=0.5
        )
        sums(island, 1)
        begin = time.monotonic()
        ends[member] = failed(lambda: sums(island, 1))
        ends[member]["again"] = failed(lambda: sums(island, 1))["text"]
        island.close()
        ends[member]["seconds"] = time.monotonic() - begin

    run_threads(2, body)
    return ends


def buffers(vendor: str) -> dict[str, Any]:
    """Registered buffers: memory of the library and of others, deregistered or not. The emulated
    library refuses to free memory that is registered."""
    library = ctypes.CDLL(os.environ[library_variables(vendor)[1]])

    def allocate(bytes_: int) -> int:
        memory = ctypes.c_void_p()
        assert library.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(bytes_)) == 0
        return memory.value or 0

    def free(memory: int) -> int:
        return int(library.ncclMemFree(ctypes.c_void_p(memory)))

    (island,) = open_members(vendor, 1)
    own = allocate(4096)
    result: dict[str, Any] = {"empty": failed(lambda: island.register_buffer(own, 0))["text"]}
    island.register_buffer(own, 4096)
    result["twice"] = failed(lambda: island.register_buffer(own, 4096))["text"]
    result["unknown"] = failed(lambda: island.deregister_buffer(own + 8))["text"]
    row = (-1, -1, own, own, 512)
    island.start(_core.IslandCall(
        _core.StepKind.island_all_reduce, _core.Dtype.float64, _core.ReduceOp.sum, 0, [row]
    ))  # fmt: skip
    island.wait()
    island.deregister_buffer(own)
    island.register_buffer(own, 4096)
    island.deregister_buffer(own)
    result["freed"] = [free(own)]
    other, kept = np.ones(8), allocate(64)
    island.register_buffer(other.ctypes.data, 64)
    island.register_buffer(kept, 64)
    result["early"] = free(kept)
    result["works"] = float(sums(island, 2)[0])
    island.close()  # drops the registrations
    result["freed"].append(free(kept))
    return result
