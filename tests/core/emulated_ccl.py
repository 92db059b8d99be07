"""The nccl* functions of an emulated vendor by ctypes, and members in processes of their own."""

from __future__ import annotations

import ctypes
import os
import time
import traceback
from collections.abc import Callable
from typing import Any

import forked
import hostile
import numpy as np
from emulated_vendor import Runtime

SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS = 0, 2, 4, 5, 6, 7
UNDEFINED = -(2**31)
TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8,
}  # fmt: skip
OPS = {"sum": 0, "product": 1, "max": 2, "min": 3, "average": 4}
BOUND = 180.0  # seconds; far above the time of any test, also under qemu


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )

    def __init__(self, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(Config), 0xCAFEBEEF, 22803, *[UNDEFINED] * 4)
        self.split_share = UNDEFINED
        for name, value in fields.items():
            setattr(self, name, value)


class CclError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class Ccl:
    """The library of one vendor, called on a stream of device `device`."""

    def __init__(self, vendor: str, device: int = 0) -> None:
        self.runtime = Runtime(vendor)
        self.library = self.runtime.library
        self.library.ncclGetLastError.restype = ctypes.c_char_p
        self.runtime("SetDevice", device)
        self.stream = self.runtime.stream()
        self.communicator = ctypes.c_void_p()

    def code(self, name: str, *arguments: Any) -> int:
        return int(self.library["nccl" + name](*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        if code := self.code(name, *arguments):
            raise CclError(code, self.text())

    def text(self) -> str:
        return str(self.library.ncclGetLastError(None).decode())

    def unique_id(self) -> bytes:
        made = UniqueId()
        self("GetUniqueId", ctypes.byref(made))
        return bytes(made)

    def connect(self, unique_id: bytes, size: int, rank: int, **fields: Any) -> int:
        """Without fields, calls the function that takes no configuration."""
        identity = UniqueId.from_buffer_copy(unique_id)
        if not fields:
            return self.code("CommInitRank", ctypes.byref(self.communicator), size, identity, rank)
        return self.code(
            "CommInitRankConfig", ctypes.byref(self.communicator), size, identity, rank,
            ctypes.byref(Config(**fields)),
        )  # fmt: skip

    def state(self) -> int:
        state = ctypes.c_int()
        self("CommGetAsyncError", self.communicator, ctypes.byref(state))
        return state.value

    def settle(self) -> int:
        """The state after polling until it is not in_progress."""
        end = time.monotonic() + BOUND
        while (state := self.state()) == IN_PROGRESS:
            assert time.monotonic() < end
            time.sleep(0.001)
        return state

    def synchronize(self) -> None:
        self.runtime("StreamSynchronize", self.stream)

    def reduce_call(
        self, name: str, source: Any, target: Any, count: int, op: int, *root: int
    ) -> None:
        self(
            name, pointer(source), pointer(target), ctypes.c_size_t(count), type_of(source),
            op, *root, self.communicator, self.stream,
        )  # fmt: skip

    def move_call(self, name: str, source: Any, target: Any, count: int, *root: int) -> None:
        self(
            name, pointer(source), pointer(target), ctypes.c_size_t(count), type_of(source),
            *root, self.communicator, self.stream,
        )  # fmt: skip

    def message(self, name: str, array: Any, peer: int) -> None:
        self(
            name, pointer(array), ctypes.c_size_t(array.size), type_of(array), peer,
            self.communicator, self.stream,
        )  # fmt: skip


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def type_of(array: np.ndarray) -> int:
    return TYPES[array.dtype.name]


Scenario = Callable[[Ccl, int, int], object]


def members(
    size: int,
    scenario: Scenario,
    vendor: str = "nvidia",
    connected: bool = True,
    **environment: str,
) -> list[Any]:
    """Runs scenario(ccl, rank, size) in `size` processes. Returns the results, or raises the first
    error.

    With connected=False the scenario gets the unique id in ccl.identity instead of a communicator.
    """
    context = forked.context()
    # Tests of handles that are gone ask for `handles` themselves.
    environment = hostile.without("handles") | environment | {"NCCL_SOCKET_IFNAME": "lo"}
    ends = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(
            target=_member, args=(theirs, scenario, vendor, rank, size, connected, environment)
        )
        for rank, (_, theirs) in enumerate(ends)
    ]
    try:
        for process in processes:
            process.start()
        identity = _receive(ends[0][0])
        for ours, _ in ends:
            ours.send(identity)
        return [_receive(ours) for ours, _ in ends]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _receive(end: Any) -> Any:
    if not end.poll(BOUND):
        raise TimeoutError("a member does not answer")
    failed, answer = end.recv()
    if failed:
        raise AssertionError(answer)
    return answer


def _member(
    end: Any, scenario: Scenario, vendor: str, rank: int, size: int, connected: bool,
    environment: dict[str, str],
) -> None:  # fmt: skip
    try:
        # hetcomm may have set the variable in the process that started this one's parent.
        os.unsetenv("NCCL_RUNTIME_CONNECT")
        os.environ.update(environment)
        ccl = Ccl(vendor, rank)
        if rank == 0:
            end.send((False, ccl.unique_id()))
        identity = end.recv()
        if connected:
            assert ccl.connect(identity, size, rank) == SUCCESS, ccl.text()
        else:
            ccl.identity = identity  # type: ignore[attr-defined]
        end.send((False, scenario(ccl, rank, size)))
        end.recv()  # until all members are done
    except EOFError:
        pass
    except BaseException:
        end.send((True, f"rank {rank}: {traceback.format_exc()}"))
