"""The emulated collective libraries: every call against NumPy, set-up, groups, faults."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import numpy as np
import pytest
from emulated_ccl import (
    BOUND,
    IN_PROGRESS,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    OPS,
    REMOTE_ERROR,
    SUCCESS,
    SYSTEM_ERROR,
    TYPES,
    Ccl,
    CclError,
    Config,
    members,
    pointer,
)

SIZES = (0, 1, 7, 1000, 300_001)


def contribution(rank: int, count: int, dtype: str) -> np.ndarray:
    """What a rank contributes; every rank can compute that of the others."""
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
    for count in (1, 1_000_000):  # far more than sockets hold: all send before anyone receives
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
def test_every_call_between_processes(vendor: str) -> None:
    members(3, everything, vendor)


def test_every_reduction_between_processes() -> None:
    members(3, reductions)


def test_a_single_member() -> None:
    members(1, reductions)


def without_blocking(ccl: Ccl, rank: int, size: int) -> None:
    assert ccl.connect(ccl.identity, size, rank, blocking=0) == IN_PROGRESS  # type: ignore[attr-defined]
    if rank == 0:
        values = np.ones(8, "float32")
        with pytest.raises(CclError, match="before its previous operation"):
            ccl.reduce_call("AllReduce", values, values, 8, 0)
    assert ccl.settle() == SUCCESS
    for _ in range(5):
        values = np.ones(1000, "float32")
        code = ccl.code(
            "AllReduce", pointer(values), pointer(values), ctypes.c_size_t(1000), 7, 0,
            ccl.communicator, ccl.stream,
        )  # fmt: skip
        assert code in (SUCCESS, IN_PROGRESS)
        assert ccl.settle() == SUCCESS
        ccl.synchronize()
        assert (values == size).all()
    assert ccl.code("CommFinalize", ccl.communicator) == IN_PROGRESS
    assert ccl.settle() == SUCCESS
    ccl("CommDestroy", ccl.communicator)


def test_set_up_and_calls_that_do_not_block() -> None:
    # Rank 0 is early: the others start their set-up only when the interpreter lets them.
    members(2, without_blocking, connected=False)


def split_in_the_background(ccl: Ccl, rank: int, size: int) -> None:
    """The parent is what is polled; the child's own configuration decides how it behaves."""
    connected = ccl.connect(ccl.identity, size, rank, blocking=0, split_share=1)  # type: ignore[attr-defined]
    assert (connected, ccl.settle()) == (IN_PROGRESS, SUCCESS)
    parent, child = ccl.communicator, ctypes.c_void_p(7)
    config = Config(blocking=1)
    code = ccl.code("CommSplit", parent, 0, rank, ctypes.byref(child), ctypes.byref(config))
    assert code == IN_PROGRESS
    assert ccl.settle() == SUCCESS
    ccl.communicator = child
    values = np.ones(100, "float32")
    ccl.reduce_call("AllReduce", values, values, 100, OPS["sum"])
    ccl("GroupStart")
    ccl.reduce_call("AllReduce", values, values, 100, OPS["sum"])
    ccl.communicator = parent
    ccl.message("Send", values, rank)
    assert ccl.code("GroupEnd") == INVALID_ARGUMENT  # one blocks, the other does not
    ccl.communicator = child
    ccl("CommDestroy", child)
    ccl.communicator = parent
    assert ccl.state() == SUCCESS  # only aborts reach the family
    ccl.synchronize()
    assert (values == size).all()


def test_a_split_in_the_background() -> None:
    members(2, split_in_the_background, connected=False)


def family_ends_together(ccl: Ccl, rank: int, size: int) -> None:
    assert ccl.connect(ccl.identity, size, rank, split_share=1) == SUCCESS  # type: ignore[attr-defined]
    parent, child = ccl.communicator, ctypes.c_void_p()
    ccl("CommSplit", parent, 0, rank, ctypes.byref(child), None)
    values = np.ones(100, "float32")
    ccl.communicator = child
    if rank == 0:
        ccl.reduce_call("AllReduce", values, values, 100, OPS["sum"])  # alone
    ccl("CommAbort", parent)
    ccl.synchronize()
    ccl("CommAbort", child)


def test_an_abort_reaches_who_shares_resources() -> None:
    members(2, family_ends_together, connected=False)


def test_the_other_vendors_id_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    nvidia, amd = Ccl("nvidia"), Ccl("amd")
    assert amd.connect(nvidia.unique_id(), 1, 0) == INVALID_ARGUMENT
    assert "of the nvidia library" in amd.text()
    assert nvidia.connect(amd.unique_id(), 1, 0) == INVALID_ARGUMENT
    assert nvidia.connect(bytes(128), 1, 0) == INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"net_name": b"Socket"}, SUCCESS),
        ({"net_name": b"IB"}, INVALID_USAGE),
        ({"magic": 1}, INVALID_ARGUMENT),
        ({"version": 0, "split_share": 7}, INVALID_ARGUMENT),
        ({"blocking": 2}, INVALID_ARGUMENT),
        ({"min_ctas": 0}, INVALID_ARGUMENT),
        ({"min_ctas": 8, "max_ctas": 4}, INVALID_ARGUMENT),
        ({"min_ctas": 4, "max_ctas": 8, "split_share": 1}, SUCCESS),
    ],
)
def test_configurations_are_checked(
    fields: dict[str, object], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    ccl = Ccl("nvidia")
    assert ccl.connect(ccl.unique_id(), 1, 0, **fields) == expected, ccl.text()
    if expected == SUCCESS:
        ccl("CommDestroy", ccl.communicator)


def on_one_device(ccl: Ccl, rank: int, size: int) -> None:
    ccl.runtime("SetDevice", 0)
    assert ccl.connect(ccl.identity, size, rank) == INVALID_USAGE  # type: ignore[attr-defined]
    assert "Duplicate GPU" in ccl.text()


def test_two_members_cannot_share_a_device() -> None:
    members(2, on_one_device, connected=False)


def different_calls(ccl: Ccl, rank: int, size: int) -> None:
    values = np.ones(100, "float32")
    ccl.reduce_call("AllReduce", values, values, 100 if rank == 0 else 60, 0)
    wait_for_error(ccl, INVALID_USAGE)
    assert "same calls" in ccl.text()
    ccl("CommAbort", ccl.communicator)
    ccl.synchronize()


def wait_for_error(ccl: Ccl, expected: int) -> None:
    end = time.monotonic() + BOUND
    while ccl.state() == SUCCESS:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert ccl.state() == expected


def test_members_that_make_different_calls_are_told() -> None:
    members(2, different_calls)


def one_fails(ccl: Ccl, rank: int, size: int) -> None:
    values = np.ones(100, "float32")
    for _ in range(3):
        ccl.reduce_call("AllReduce", values, values, 100, 0)
    ccl.synchronize()
    ccl.reduce_call("AllReduce", values, values, 100, 0)
    if rank == 1:
        wait_for_error(ccl, REMOTE_ERROR)
    assert ccl.runtime.code("StreamQuery", ccl.stream) == 600  # stands still until aborted
    ccl("CommAbort", ccl.communicator)
    ccl.synchronize()


@pytest.mark.parametrize("fault", ["async_error:3@1", "async_error:3"])
def test_an_asynchronous_error_stops_the_stream(fault: str) -> None:
    members(2, one_fails, HETCOMM_EMULATED_FAULT=fault)


def one_hangs(ccl: Ccl, rank: int, size: int) -> None:
    values = np.ones(100, "float32")
    ccl.reduce_call("AllReduce", values, values, 100, 0)
    ccl.synchronize()
    ccl.reduce_call("AllReduce", values, values, 100, 0)
    if rank == 0:
        assert ccl.state() == SUCCESS
    else:
        wait_for_error(ccl, REMOTE_ERROR)  # rank 0 has given up
    assert ccl.runtime.code("StreamQuery", ccl.stream) == 600
    ccl("CommAbort", ccl.communicator)
    ccl.synchronize()


def test_a_hang_ends_with_an_abort() -> None:
    members(2, one_hangs, HETCOMM_EMULATED_FAULT="hang:1@0")


def set_up_fails(ccl: Ccl, rank: int, size: int) -> None:
    code = ccl.connect(ccl.identity, size, rank, blocking=0)  # type: ignore[attr-defined]
    assert code == IN_PROGRESS
    if os.environ["HETCOMM_EMULATED_FAULT"] == "init_error":
        assert ccl.settle() == SYSTEM_ERROR
    else:
        assert ccl.state() == IN_PROGRESS
    ccl("CommAbort", ccl.communicator)


@pytest.mark.parametrize("fault", ["init_error", "init_hang", "init_hang@1"])
def test_set_up_that_fails_or_hangs_can_be_aborted(fault: str) -> None:
    members(2, set_up_fails, connected=False, HETCOMM_EMULATED_FAULT=fault)


def version(ccl: Ccl, rank: int, size: int) -> int:
    number = ctypes.c_int()
    ccl("GetVersion", ctypes.byref(number))
    return number.value


def test_versions() -> None:
    assert members(1, version) == [22803]
    assert members(1, version, HETCOMM_EMULATED_FAULT="old_version") == [21403]


def reported(ccl: Ccl, rank: int, size: int) -> None:
    assert ccl.connect(ccl.identity, size, rank, net_name=b"ib") == SUCCESS  # type: ignore[attr-defined]


def test_the_network_taken_is_reported(tmp_path: Path) -> None:
    for name in ("mlx5_0", "mlx5_1", "bnxt_0"):
        (tmp_path / "class/infiniband" / name).mkdir(parents=True)
    environment = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(tmp_path / "log.%h.%p"),
        "HETCOMM_SYSFS_ROOT": str(tmp_path),
        "NCCL_IB_HCA": "mlx5",
        "HETCOMM_EMULATED_NETWORKS": "IB,Socket",
    }
    members(1, reported, connected=False, **environment)
    (log,) = tmp_path.glob("log.*")
    text = log.read_text()
    assert (
        "NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE ; OOB lo:127.0.0.1<0>" in text
    )
    assert "NCCL INFO Using network ib\n" in text


def dies(ccl: Ccl, rank: int, size: int) -> None:
    values = np.ones(100, "float32")
    if rank == 1:
        return
    ccl.reduce_call("AllReduce", values, values, 100, 0)
    wait_for_error(ccl, REMOTE_ERROR)
    assert "rank 1" in ccl.text()


def leaves(ccl: Ccl, rank: int, size: int) -> None:
    if rank == 1:
        ccl("CommAbort", ccl.communicator)
        return
    dies(ccl, rank, size)


def test_a_member_that_leaves_is_noticed() -> None:
    members(2, leaves)
