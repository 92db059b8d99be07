"""Programs of members of native islands: calls, set-up, faults, ends. See ccl_members.py."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

import ccl_sides
import numpy as np
from ccl_members import START, failed, open_members
from emulated_ccl import Ccl
from islands import FACTOR, KINDS, STORAGE, Case, random_case, run_threads, widen

import hetcomm
from hetcomm import _core

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}
TOLERANCE |= {"float8_e4m3fn": 0.6, "float8_e5m2": 1.2}


def legal(kind: str) -> list[tuple[str, str]]:
    if kind in ("all_gather", "all_to_all"):
        return [(dtype, "sum") for dtype in STORAGE]
    return [
        (dtype, op)
        for dtype in STORAGE
        for op in _core.ReduceOp.__members__
        if _core.ccl_reduces(getattr(_core.Dtype, dtype), getattr(_core.ReduceOp, op))
    ]


def wide(dtype: str, values: np.ndarray) -> np.ndarray:
    return widen(dtype, values).astype(np.float64)


def oracle(case: Case) -> list[np.ndarray]:
    """The expected content of every piece; sums of floats in float64."""
    if case.kind in ("all_gather", "all_to_all") or case.dtype not in TOLERANCE:
        return case.expected
    function: Any = {
        "sum": np.sum, "product": np.prod, "min": np.min, "max": np.max, "average": np.mean,
        "premul_sum": lambda values, axis: FACTOR * np.sum(values, axis),
    }[case.op]  # fmt: skip
    return [
        function([wide(case.dtype, row[index]) for row in case.sources], axis=0)
        for index in range(len(case.pieces))
    ]


def compare(case: Case, expected: list[np.ndarray], note: str) -> None:
    for index, piece in enumerate(case.pieces):
        writers = [m for m in range(case.members) if piece.target in (None, m)]
        got = [case.targets[member][index] for member in writers]
        for member, values in zip(writers, got, strict=True):
            where = f"{note}: {case.kind} {case.op} {case.dtype}, piece {index} on member {member}"
            if expected[index].dtype == np.float64 and case.dtype != "float64":
                off = np.abs(wide(case.dtype, values) - expected[index])
                limit = TOLERANCE[case.dtype] * np.maximum(1, np.abs(expected[index]))
                assert (off <= limit).all(), where
            elif case.dtype == "float64" and case.kind in ("all_reduce", "reduce_scatter"):
                np.testing.assert_allclose(values, expected[index], 1e-12, 1e-12, err_msg=where)
            else:
                assert values.tobytes() == expected[index].tobytes(), where
            assert values.tobytes() == got[0].tobytes(), f"{where}: other bits than elsewhere"


def cases(vendor: str, members: str, seed: str) -> dict[str, Any]:
    """Every kind, dtype and operation on random pieces, some empty, some in place."""
    rng = np.random.default_rng(int(seed))
    count = int(members)
    made = [
        random_case(rng, kind, dtype, op, count, 257) for kind in KINDS for dtype, op in legal(kind)
    ]
    expected = [oracle(case) for case in made]
    islands = open_members(vendor, count)

    def body(member: int) -> None:
        for sequence, case in enumerate(made):
            islands[member].start(case.call(member, sequence))
            islands[member].wait(60)

    run_threads(count, body)
    for case, wanted in zip(made, expected, strict=True):
        compare(case, wanted, f"seed {seed}")
    described = islands[0].describe()
    run_threads(count, lambda member: islands[member].close())
    return {"cases": len(made), "describe": described}


def uniform(vendor: str, members: str) -> dict[str, Any]:
    """Equal adjacent pieces: the library's own reduce_scatter and all_gather, in place and out of
    place."""
    count, block = int(members), 33
    islands = open_members(vendor, count)
    functions: set[str] = set()
    for kind in ("reduce_scatter", "all_gather"):
        for in_place in (False, True):
            shared = [np.arange(count * block, dtype=np.float32) + 7 * m for m in range(count)]
            own = [row[m * block :][:block] for m, row in enumerate(shared)]
            if not in_place:
                own = [values.copy() for values in own]
            before = [row.copy() for row in shared]
            scatter = kind == "reduce_scatter"

            def body(
                member: int,
                kind: str = kind,
                scatter: bool = scatter,
                shared: list[np.ndarray] = shared,
                own: list[np.ndarray] = own,
            ) -> None:
                rows, places = [], []
                for owner in range(count):
                    part = shared[member][owner * block :][:block].ctypes.data
                    mine = own[member].ctypes.data if owner == member else 0
                    addresses = (part, mine) if scatter else (mine, part)
                    rows.append((*((-1, owner) if scatter else (owner, -1)), *addresses, block))
                    places.append((owner * block, 1 << 20) if scatter else (1 << 20, owner * block))
                call = _core.IslandCall(
                    getattr(_core.StepKind, f"island_{kind}"), _core.Dtype.float32,
                    _core.ReduceOp.sum, 0, rows, places,
                )  # fmt: skip
                functions.update(row[0] for row in _core.lower_ccl(call, member, count))
                islands[member].start(call)
                islands[member].wait(60)

            run_threads(count, body)
            for member in range(count):
                part = slice(member * block, (member + 1) * block)
                if scatter:
                    assert (own[member] == np.sum([row[part] for row in before], axis=0)).all()
                else:
                    whole = [before[m][m * block :][:block] for m in range(count)]
                    assert (shared[member] == np.concatenate(whole)).all()
    return {"functions": sorted(functions)}


def faulty(vendor: str, members: str, calls: str, patience: str) -> list[dict[str, Any]]:
    """The errors of each member in set-up, in all_reduces, in later use and in closing."""
    count = int(members)
    unique_id = _core.make_ccl_id(vendor)
    ends: list[dict[str, Any]] = [{}] * count

    def body(member: int) -> None:
        begin = time.monotonic()
        island = None
        end: dict[str, Any] = {"error": "", "text": "", "calls": 0}
        values = np.ones(5, np.float32)
        piece = (-1, -1, values.ctypes.data, values.ctypes.data, values.size)
        call = _core.IslandCall(
            _core.StepKind.island_all_reduce, _core.Dtype.float32, _core.ReduceOp.sum, 7, [piece]
        )
        try:
            island = _core.CclIsland(
                vendor, member, unique_id, member, count, ranks=[10 + m for m in range(count)],
                timeout=float(patience),
            )  # fmt: skip
            for _ in range(int(calls)):
                island.start(call)
                island.wait(float(patience))
                end["calls"] += 1
        except hetcomm.Error as error:
            end["error"], end["text"] = type(error).__name__, str(error)
        end["seconds"] = time.monotonic() - begin
        if island is not None:
            try:
                island.start(call)
                island.wait(5.0)
                end["again"] = ""
            except hetcomm.Error as error:
                end["again"] = str(error)
            island.abandon()
            island.close()
        end["closed"] = time.monotonic() - begin
        ends[member] = end

    run_threads(count, body)
    return ends


def member(vendor: str, index: str, members: str, unique_id: str) -> int:
    """One member in a separate process. The first member prints the id of the island."""
    if not unique_id:
        unique_id = _core.make_ccl_id(vendor).hex()
        print(unique_id, flush=True)
    island = _core.CclIsland(
        vendor, int(index), bytes.fromhex(unique_id), int(index), int(members), timeout=START
    )
    values = np.full(1001, 1 + int(index), np.int64)
    piece = (-1, -1, values.ctypes.data, values.ctypes.data, values.size)
    island.start(_core.IslandCall(
        _core.StepKind.island_all_reduce, _core.Dtype.int64, _core.ReduceOp.sum, 1, [piece]
    ))  # fmt: skip
    island.wait(60)
    assert (values == values[0]).all()
    island.close()
    return int(values[0])


def strangers() -> dict[str, str]:
    unique_id = _core.make_ccl_id("nvidia")
    return failed(lambda: _core.CclIsland("amd", 0, unique_id, 0, 1, timeout=20))


def version(vendor: str) -> dict[str, str]:
    return failed(lambda: _core.ccl_version(vendor))


def network(vendor: str, name: str) -> dict[str, str]:
    """Requests a network by name."""
    unique_id = _core.make_ccl_id(vendor)
    adapters = {"NCCL_IB_HCA": "=mlx5_1,mlx5_3"}
    text = ""

    def attempt() -> None:
        nonlocal text
        island = _core.CclIsland(
            vendor, 0, unique_id, 0, 1, network=name, environment=adapters, timeout=20
        )
        text = island.describe()
        island.close()

    result = failed(attempt)
    return result | {"description": text}


def refused(vendor: str) -> dict[str, Any]:
    """The island works on after a call with a dtype that the library does not reduce."""
    (island,) = open_members(vendor, 1)
    values = np.full(3, 2, np.int16)
    row = (-1, -1, values.ctypes.data, values.ctypes.data, 3)

    def reduce(dtype: str, kind: str) -> None:
        island.start(_core.IslandCall(
            getattr(_core.StepKind, f"island_{kind}"), getattr(_core.Dtype, dtype),
            _core.ReduceOp.sum, 0, [row],
        ))  # fmt: skip
        island.wait()

    result: dict[str, Any] = failed(lambda: reduce("int16", "all_reduce"))
    reduce("float16", "all_reduce")
    island.close()
    return result | {"afterwards": values.tolist()}


def variables() -> dict[str, dict[str, str]]:
    """os.environ does not show the variables that C sets."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    wanted = {"NCCL_IB_HCA": "mlx5_7", "NCCL_SOCKET_IFNAME": "eth9"}
    unique_id = _core.make_ccl_id("nvidia", wanted)
    _core.CclIsland("nvidia", 0, unique_id, 0, 1, environment=wanted).close()
    debug = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
    return {
        "variables": {name: getenv(name.encode()).decode() for name in wanted},
        "debug": {name: value.decode() for name in debug if (value := getenv(name.encode()))},
    }


def absent(vendor: str) -> dict[str, bool]:
    """One member makes a call and polls for a second. Then the other member makes it too."""
    islands = open_members(vendor, 2)
    values = [np.full(10, 1 + member, np.float32) for member in range(2)]

    def start(member: int) -> None:
        address = values[member].ctypes.data
        islands[member].start(_core.IslandCall(
            _core.StepKind.island_all_reduce, _core.Dtype.float32, _core.ReduceOp.sum, 0,
            [(-1, -1, address, address, 10)],
        ))  # fmt: skip

    start(0)
    end = time.monotonic() + 1
    early = False
    while time.monotonic() < end and not early:
        early = islands[0].progress()
    start(1)
    for island in islands[early:]:
        island.wait()
    return {"early": early, "right": all((row == 3).all() for row in values)}


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def hanging(vendor: str) -> dict[str, Any]:
    """The error of an initialisation that hangs, and the number of threads that stay behind."""
    unique_id = _core.make_ccl_id(vendor)
    _core.make_ccl_id(vendor)  # starts the threads that the library starts once
    before = threads()
    result: dict[str, Any] = failed(lambda: _core.CclIsland(vendor, 0, unique_id, 0, 1, timeout=2))
    end = time.monotonic() + 20
    while threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    return result | {"left": threads() - before}


def survivor(index: str, unique_id: str) -> dict[str, Any]:
    """One of two members, in separate processes. The second member is killed between two calls."""
    first = not unique_id
    if first:
        unique_id = _core.make_ccl_id("nvidia").hex()
        print(unique_id, flush=True)
    island = _core.CclIsland(
        "nvidia", int(index), bytes.fromhex(unique_id), int(index), 2, timeout=START
    )
    values = np.ones(100_000, np.float32)
    row = (-1, -1, values.ctypes.data, values.ctypes.data, values.size)
    call = _core.IslandCall(
        _core.StepKind.island_all_reduce, _core.Dtype.float32, _core.ReduceOp.sum, 7, [row]
    )
    island.start(call)
    island.wait()
    if not first:
        os.kill(os.getpid(), signal.SIGKILL)
    island.start(call)
    result: dict[str, Any] = failed(lambda: island.wait(60))
    begin = time.monotonic()
    island.close()
    return result | {"closing": time.monotonic() - begin}


def beside_another_user(
    vendor: str, index: str, unique_id: str, comes_late: str, started: str
) -> dict[str, Any]:
    """One of two members, in separate processes. If it `comes_late`, somebody else has called the
    library of this process before hetcomm. Member 1 makes its call after member 0 has made its
    own, and so made the file `started`."""
    if comes_late == "late":
        other = Ccl(vendor, int(index))
        assert other.connect(other.unique_id(), 1, 0) == 0
    if not unique_id:
        unique_id = _core.make_ccl_id(vendor).hex()
        print(unique_id, flush=True)
    island = _core.CclIsland(
        vendor, int(index), bytes.fromhex(unique_id), int(index), 2, timeout=START
    )
    values = np.full(1001, 1 + int(index), np.int64)
    row = (-1, -1, values.ctypes.data, values.ctypes.data, values.size)
    end = time.monotonic() + 60
    while index == "1" and not os.path.exists(started):
        assert time.monotonic() < end
        time.sleep(0.001)
    island.start(_core.IslandCall(
        _core.StepKind.island_all_reduce, _core.Dtype.int64, _core.ReduceOp.sum, 1, [row]
    ))  # fmt: skip
    with open(started, "w"):
        pass
    island.wait(60)
    described = island.describe()
    island.close()
    return {"describe": described, "right": bool((values == 3).all())}


def forked() -> int:
    """A child drops the island of its parent, and the parent still uses the island."""
    (island,) = open_members("nvidia", 1)
    child = os.fork()
    if child == 0:
        island.close()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    values = np.ones(3, np.float32)
    row = (-1, -1, values.ctypes.data, values.ctypes.data, 3)
    island.start(_core.IslandCall(
        _core.StepKind.island_all_reduce, _core.Dtype.float32, _core.ReduceOp.sum, 0, [row]
    ))  # fmt: skip
    island.wait()
    island.close()
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    print(json.dumps((globals() | vars(ccl_sides))[sys.argv[1]](*sys.argv[2:])))


if __name__ == "__main__":
    main()
