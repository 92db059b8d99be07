"""The emulated collective libraries: set-up that does not block, splits, rejected calls, faults,
ends."""

from __future__ import annotations

import ctypes
import functools
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
    Ccl,
    CclError,
    Config,
    members,
    pointer,
)


def without_blocking(tried: Path, ccl: Ccl, rank: int, size: int) -> None:
    """The other members begin set-up after member 0 has made the file `tried`."""
    deadline = time.monotonic() + BOUND
    while rank > 0 and not tried.exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert ccl.connect(ccl.identity, size, rank, blocking=0) == IN_PROGRESS  # type: ignore[attr-defined]
    if rank == 0:
        values = np.ones(8, "float32")
        with pytest.raises(CclError, match="before its previous operation"):
            ccl.reduce_call("AllReduce", values, values, 8, 0)
        tried.touch()
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


def test_set_up_and_calls_need_not_block(tmp_path: Path) -> None:
    members(2, functools.partial(without_blocking, tmp_path / "tried"), connected=False)


def split_in_the_background(ccl: Ccl, rank: int, size: int) -> None:
    """Polling the parent completes the split. The child's own configuration decides about
    blocking."""
    connected = ccl.connect(ccl.identity, size, rank, blocking=0, split_share=1)  # type: ignore[attr-defined]
    assert (connected, ccl.settle()) == (IN_PROGRESS, SUCCESS)
    parent, child = ccl.communicator, ctypes.c_void_p(7)
    config = Config(blocking=1)
    code = ccl.code("CommSplit", parent, 0, rank, ctypes.byref(child), ctypes.byref(config))
    assert code == SUCCESS  # the split has only begun
    assert ccl.settle() == SUCCESS
    ccl.communicator = child
    values = np.ones(100, "float32")
    ccl.reduce_call("AllReduce", values, values, 100, OPS["sum"])
    ccl("GroupStart")
    ccl.reduce_call("AllReduce", values, values, 100, OPS["sum"])
    ccl.communicator = parent
    ccl.message("Send", values, rank)
    assert ccl.code("GroupEnd") == INVALID_ARGUMENT  # one child blocks, the other does not
    ccl.communicator = child
    ccl("CommDestroy", child)
    ccl.communicator = parent
    assert ccl.state() == SUCCESS  # only aborts reach communicators that share resources
    ccl.synchronize()
    assert (values == size).all()


def test_a_split_runs_in_the_background() -> None:
    members(2, split_in_the_background, connected=False)


def family_ends_together(ccl: Ccl, rank: int, size: int) -> None:
    assert ccl.connect(ccl.identity, size, rank, split_share=1) == SUCCESS  # type: ignore[attr-defined]
    parent, child = ccl.communicator, ctypes.c_void_p()
    ccl("CommSplit", parent, 0, rank, ctypes.byref(child), None)
    values = np.ones(100, "float32")
    ccl.communicator = child
    if rank == 0:
        ccl.reduce_call("AllReduce", values, values, 100, OPS["sum"])  # without shared resources
    ccl("CommAbort", parent)
    ccl.synchronize()
    ccl("CommAbort", child)


def test_an_abort_reaches_communicators_with_shared_resources() -> None:
    # Connects in set-up: only one member makes the call.
    members(2, family_ends_together, connected=False, NCCL_RUNTIME_CONNECT="0")


def ids_of_both_vendors(nvidia: Ccl, rank: int, size: int) -> None:
    amd = Ccl("amd")
    assert amd.connect(nvidia.unique_id(), 1, 0) == INVALID_ARGUMENT
    assert "of the nvidia library" in amd.text()
    assert nvidia.connect(amd.unique_id(), 1, 0) == INVALID_ARGUMENT
    assert nvidia.connect(bytes(128), 1, 0) == INVALID_ARGUMENT


def test_an_id_of_another_vendor_is_rejected() -> None:
    members(1, ids_of_both_vendors, connected=False)


def configured(fields: dict[str, object], expected: int, ccl: Ccl, rank: int, size: int) -> None:
    assert ccl.connect(ccl.identity, 1, 0, **fields) == expected, ccl.text()  # type: ignore[attr-defined]
    if expected == SUCCESS:
        ccl("CommDestroy", ccl.communicator)


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
def test_configurations_are_checked(fields: dict[str, object], expected: int) -> None:
    members(1, functools.partial(configured, fields, expected), connected=False)


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


def test_members_with_different_calls_get_an_error() -> None:
    members(2, different_calls)


def one_fails(ccl: Ccl, rank: int, size: int) -> None:
    values = np.ones(100, "float32")
    for _ in range(3):
        ccl.reduce_call("AllReduce", values, values, 100, 0)
    ccl.synchronize()
    ccl.reduce_call("AllReduce", values, values, 100, 0)
    if rank == 1:
        wait_for_error(ccl, REMOTE_ERROR)
    assert ccl.runtime.code("StreamQuery", ccl.stream) == 600  # stands still until the abort
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
def test_failing_and_hanging_set_up_can_be_aborted(fault: str) -> None:
    members(2, set_up_fails, connected=False, HETCOMM_EMULATED_FAULT=fault)


def version(ccl: Ccl, rank: int, size: int) -> int:
    number = ctypes.c_int()
    ccl("GetVersion", ctypes.byref(number))
    return number.value


def test_versions_are_reported() -> None:
    assert members(1, version) == [22803]
    assert members(1, version, HETCOMM_EMULATED_FAULT="old_version") == [21403]


def reported(ccl: Ccl, rank: int, size: int) -> None:
    assert ccl.connect(ccl.identity, size, rank, net_name=b"ib") == SUCCESS  # type: ignore[attr-defined]


def test_the_chosen_network_is_reported(tmp_path: Path) -> None:
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


def test_a_leaving_member_is_noticed() -> None:
    members(2, leaves, NCCL_RUNTIME_CONNECT="0")


def ends_first(ccl: Ccl, rank: int, size: int) -> None:
    """Member 1 ends its communicator, member 0 calls."""
    values = np.ones(100, "float32")
    if rank == 1:
        assert ccl.code("CommFinalize", ccl.communicator) == REMOTE_ERROR  # once member 0 is gone
        assert "rank 0 " in ccl.text()
    else:
        ccl.move_call("Broadcast", values, values, 100, 0)
        ccl.synchronize()
    ccl("CommAbort", ccl.communicator)


def test_an_end_is_no_mistake_of_the_other_calls() -> None:
    """The vendors' libraries do not notice a call without a counterpart."""
    members(2, ends_first, HETCOMM_EMULATED_HOSTILE="ends")
