"""The emulated collective libraries: every call against NumPy, set-up, groups, faults."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from emulated_ccl import (
    INVALID_ARGUMENT,
    INVALID_USAGE,
    OPS,
    TYPES,
    Ccl,
    CclError,
    members,
    pointer,
)

SIZES = (0, 1, 7, 1000, 300_001)


def contribution(rank: int, count: int, dtype: str) -> np.ndarray:
    """A rank's input, which every rank can compute."""
    random = np.random.default_rng((rank, count))
    if np.dtype(dtype).kind == "f":
        return (random.integers(-8, 9, count) / 4).astype(dtype)
    return random.integers(0, 2 ** (8 * np.dtype(dtype).itemsize - 2), count).astype(dtype)


def reduced(parts: list[np.ndarray], op: str) -> np.ndarray:
    dtype = parts[0].dtype
    wide = [part.astype(np.float32) for part in parts] if dtype == np.float16 else parts
    total = wide[0].copy()
    with np.errstate(over="ignore"):
        for part in wide[1:]:
            match op:
                case "sum" | "average":
                    total = total + part
                case "product":
                    total = total * part
                case "max":
                    total = np.maximum(total, part)
                case _:
                    total = np.minimum(total, part)
    if op == "average":
        return (total / len(parts) if dtype.kind == "f" else total // len(parts)).astype(dtype)
    return total.astype(dtype)


def same(got: np.ndarray, expected: np.ndarray, op: str) -> None:
    if op == "average" and got.dtype.kind == "f":
        tolerance = 4e-3 if got.dtype == np.float16 else 1e-6
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, expected)


def reductions(ccl: Ccl, rank: int, size: int) -> None:
    for dtype in TYPES:
        for op, number in OPS.items():
            for count in SIZES[:-1] if dtype != "float32" else SIZES:
                parts = [contribution(r, count, dtype) for r in range(size)]
                if op == "average" and np.dtype(dtype).kind != "f":
                    parts = [part // size for part in parts]  # their sum does not wrap
                expected = reduced(parts, op)
                target = np.empty(count, dtype)
                ccl.reduce_call("AllReduce", parts[rank], target, count, number)
                in_place = parts[rank].copy()
                ccl.reduce_call("AllReduce", in_place, in_place, count, number)
                rooted = np.empty(count, dtype)
                ccl.reduce_call("Reduce", parts[rank], rooted, count, number, size - 1)
                ccl.synchronize()
                same(target, expected, op)
                same(in_place, expected, op)
                if rank == size - 1:
                    same(rooted, expected, op)


def movements(ccl: Ccl, rank: int, size: int) -> None:
    for count in SIZES:
        parts = [contribution(r, count * size, "float32") for r in range(size)]
        mine = slice(rank * count, (rank + 1) * count)
        scattered = np.empty(count, "float32")
        ccl.reduce_call("ReduceScatter", parts[rank], scattered, count, OPS["sum"])
        in_place = parts[rank].copy()
        ccl.reduce_call("ReduceScatter", in_place, in_place[mine], count, OPS["sum"])
        gathered = np.empty(count * size, "float32")
        ccl.move_call("AllGather", parts[rank], gathered, count)
        gathered_in_place = np.zeros(count * size, "float32")
        gathered_in_place[mine] = parts[rank][:count]
        ccl.move_call("AllGather", gathered_in_place[mine], gathered_in_place, count)
        sent = np.empty(count, "float32")
        ccl.move_call("Broadcast", parts[rank], sent, count, 1)
        ccl.synchronize()
        np.testing.assert_array_equal(scattered, reduced(parts, "sum")[mine])
        np.testing.assert_array_equal(in_place[mine], scattered)
        np.testing.assert_array_equal(gathered, np.concatenate([p[:count] for p in parts]))
        np.testing.assert_array_equal(gathered_in_place, gathered)
        np.testing.assert_array_equal(sent, parts[1][:count])


def messages(ccl: Ccl, rank: int, size: int) -> None:
    for count in (1, 1_000_000):  # far more than sockets hold: all members send before any receives
        sent = [np.full(count, 10 * rank + peer, "int32") for peer in range(size)]
        came = [np.empty(count, "int32") for _ in range(size)]
        extra, again = np.full(3, rank, "int32"), np.empty(3, "int32")
        ccl("GroupStart")
        for peer in range(size):
            ccl.message("Send", sent[peer], peer)
        ccl.message("Send", extra, (rank + 1) % size)
        for peer in range(size):
            ccl.message("Recv", came[peer], peer)
        ccl.message("Recv", again, (rank - 1) % size)
        ccl("GroupEnd")
        ccl.synchronize()
        for peer in range(size):
            assert (came[peer] == 10 * peer + rank).all()
        assert (again == (rank - 1) % size).all()


def grouped(ccl: Ccl, rank: int, size: int) -> None:
    arrays = [np.full(1000, rank + i, "float64") for i in range(4)]
    ccl("GroupStart")
    for root, array in enumerate(arrays[:size]):
        ccl.move_call("Broadcast", array, array, array.size, root)
    ccl("GroupStart")
    ccl.reduce_call("AllReduce", arrays[3], arrays[3], 1000, OPS["max"])
    ccl("GroupEnd")
    ccl("GroupEnd")
    ccl.synchronize()
    for root, array in enumerate(arrays[:size]):
        assert (array == root + root).all()
    assert (arrays[3] == size - 1 + 3).all()
    assert ccl.code("GroupEnd") == INVALID_USAGE


def scaled(ccl: Ccl, rank: int, size: int) -> None:
    op, factor = ctypes.c_int(), np.array([rank + 2], "float32")
    for residence in (0, 1):
        ccl(
            "RedOpCreatePreMulSum", ctypes.byref(op), pointer(factor), TYPES["float32"],
            residence, ccl.communicator,
        )  # fmt: skip
        values = np.full(5000, 3, "float32")
        ccl.reduce_call("AllReduce", values, values, values.size, op.value)
        ccl.synchronize()
        assert (values == 3 * sum(r + 2 for r in range(size))).all()
        ccl("RedOpDestroy", op.value, ccl.communicator)
    with pytest.raises(CclError, match="unknown reduction"):
        ccl.reduce_call("AllReduce", values, values, values.size, op.value)


def split(ccl: Ccl, rank: int, size: int) -> None:
    whole, half = ccl.communicator, ctypes.c_void_p()
    ccl("CommSplit", whole, rank % 2, -rank, ctypes.byref(half), None)
    ccl.communicator = half
    count, own = ctypes.c_int(), ctypes.c_int()
    ccl("CommCount", half, ctypes.byref(count))
    ccl("CommUserRank", half, ctypes.byref(own))
    group = [r for r in reversed(range(size)) if r % 2 == rank % 2]
    assert (count.value, own.value) == (len(group), group.index(rank))
    values = np.full(100, 2.0**rank, "float64")
    ccl.reduce_call("AllReduce", values, values, 100, OPS["sum"])
    ccl.communicator = whole
    total = np.full(100, 1, "int64")
    ccl.reduce_call("AllReduce", total, total, 100, OPS["sum"])
    ccl.synchronize()
    assert (values == sum(2.0**r for r in group)).all() and (total == size).all()
    none = ctypes.c_void_p(1)
    color = -1 if rank == 0 else 5
    ccl("CommSplit", whole, color, rank, ctypes.byref(none), None)
    assert (none.value is None) == (rank == 0)
    ccl("CommDestroy", half)


def registered(ccl: Ccl, rank: int, size: int) -> None:
    memory, handle = ctypes.c_void_p(), ctypes.c_void_p()
    ccl("MemAlloc", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
    ccl("CommRegister", ccl.communicator, memory, ctypes.c_size_t(1 << 20), ctypes.byref(handle))
    assert ccl.code("MemFree", memory) == INVALID_USAGE
    assert ccl.code("CommDeregister", ccl.communicator, memory) == INVALID_USAGE
    ccl("CommDeregister", ccl.communicator, handle)
    assert ccl.code("CommDeregister", ccl.communicator, handle) == INVALID_USAGE
    ccl("MemFree", memory)


def everything(ccl: Ccl, rank: int, size: int) -> None:
    for scenario in (movements, messages, grouped, scaled, split, registered):
        scenario(ccl, rank, size)
    device = ctypes.c_int()
    ccl("CommCuDevice", ccl.communicator, ctypes.byref(device))
    assert device.value == rank
    ccl("CommFinalize", ccl.communicator)
    ccl("CommDestroy", ccl.communicator)
    assert ccl.code("CommDestroy", ccl.communicator) == INVALID_ARGUMENT


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_every_call_works_between_processes(vendor: str) -> None:
    members(3, everything, vendor)


def test_every_reduction_works_between_processes() -> None:
    members(3, reductions)


def test_a_single_member_works() -> None:
    members(1, reductions)
