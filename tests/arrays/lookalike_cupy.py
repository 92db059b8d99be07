"""The part of CuPy that programs here use, over the memory and streams of an emulated device.

What CuPy promises holds: a current stream for each thread, work in its order, and a pool that gives
freed memory to the next array of the same stream at once. DLPack orders the stream of the consumer
behind the current one. The CUDA array interface names the current one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from hetcomm import _core

_thread = threading.local()
_free: dict[tuple[int, int], list[int]] = defaultdict(list)  # by stream and bytes
_opened: list[_core.Device] = []


class Device:
    def __init__(self, index: int) -> None:
        self.id = index

    def use(self) -> None:
        if not _opened:
            _opened.append(_core.Device.open(os.environ["HETCOMM_VENDOR"], self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Stream:
    null: Stream
    ptds: Stream

    def __init__(self, non_blocking: bool = False, *, pointer: int | None = None) -> None:
        self.ptr = _opened[0].make_stream() if pointer is None else pointer

    def __enter__(self) -> Self:
        self._before, _thread.stream = _current(), self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.stream = self._before

    def launch_host_func(self, function: Callable[[Any], None], argument: Any) -> None:
        _opened[0].call(self.ptr, lambda: function(argument))

    def synchronize(self) -> None:
        event = _opened[0].make_event()
        _opened[0].record(event, self.ptr)
        while not _opened[0].passed(event):
            time.sleep(0)
        _opened[0].destroy_event(event)


Stream.null, Stream.ptds = Stream(pointer=0), Stream(pointer=2)


def _current(device_id: int = -1) -> Stream:
    assert device_id in (-1, _opened[0].index), "the stream of another device"
    return getattr(_thread, "stream", Stream.null)


cuda = SimpleNamespace(Device=Device, Stream=Stream, get_current_stream=_current)


class Memory:
    """A block of the pool, which goes back to the stream on which it was allocated."""

    def __init__(self, size: int) -> None:
        self.arena = _free[_current().ptr, max(size, 1)]
        self.ptr = self.arena.pop() if self.arena else _opened[0].allocate(max(size, 1))

    def __del__(self) -> None:
        self.arena.append(self.ptr)


class ndarray(mmap.mmap):
    """An array, or a view into the memory of another. `plain` has the layout, but no elements.

    As of CuPy 14 its type has the buffer protocol, which fails for memory of a device. So does the
    protocol of a closed mmap.
    """

    def __new__(cls, *_: Any) -> Self:
        made = super().__new__(cls, -1, 1)
        made.close()
        return made

    def __init__(self, plain: np.ndarray, memory: Memory, offset: int = 0) -> None:
        self._plain, self._memory, self._offset = plain, memory, offset
        self.shape, self.dtype, self.nbytes = plain.shape, plain.dtype, plain.nbytes
        self.flags, self.device = plain.flags, Device(_opened[0].index)
        self.data = SimpleNamespace(ptr=memory.ptr + offset if plain.size else 0)

    def _view(self, plain: np.ndarray) -> ndarray:
        offset = plain.ctypes.data - self._plain.ctypes.data if plain.size else 0
        return ndarray(plain, self._memory, self._offset + offset)

    def __getitem__(self, part: Any) -> ndarray:
        return self._view(self._plain[part])

    @property
    def T(self) -> ndarray:
        return self._view(self._plain.T)

    def fill(self, value: float) -> None:
        """In the order of the stream, as a kernel: the emulated device's memory is the host's."""
        view = (ctypes.c_char * self.nbytes).from_address(self.data.ptr) if self.nbytes else b""
        values, memory = np.full(self.shape, value, self.dtype).tobytes(), self._memory

        def write() -> None:
            assert memory is not None  # stays until the work is done
            view[:] = values  # type: ignore[index]

        if self.nbytes:
            _opened[0].call(_current().ptr, write)

    def get(self) -> np.ndarray:
        found = np.empty(self.shape, self.dtype)
        _opened[0].copy(found.ctypes.data, self.data.ptr, self.nbytes, _current().ptr)
        _current().synchronize()
        return found

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self.flags.c_contiguous else self._plain.strides
        stream = _current().ptr or 1
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False),
            "version": 3, "strides": strides, "stream": stream,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return {"nvidia": 2, "amd": 10}[_opened[0].vendor], self.device.id

    def __dlpack__(self, *, stream: int | None = None, max_version: object = None) -> object:
        assert stream != 0 or _opened[0].vendor == "amd", "0 is ambiguous with CUDA"
        consumer = 0 if stream == 1 else stream or 0
        if consumer != _current().ptr:
            event = _opened[0].make_event()
            _opened[0].record(event, _current().ptr)
            _opened[0].wait_event(consumer, event)
        return _capsule(self)


def empty(shape: int | tuple[int, ...], dtype: Any = np.float64) -> ndarray:
    plain = np.empty(shape, dtype)
    return ndarray(plain, Memory(plain.nbytes))


def full(shape: int | tuple[int, ...], value: float, dtype: Any = np.float64) -> ndarray:
    made = empty(shape, dtype)
    made.fill(value)
    return made


class _Managed(ctypes.Structure):
    """DLManagedTensor of DLPack 0.8."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("axes", ctypes.c_int32),
        ("type", ctypes.c_uint8 * 4), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_shared: dict[int, tuple[object, ...]] = {}  # what a capsule refers to, until its deleter is called


@_Deleter
def _delete(managed: Any) -> None:
    del _shared[ctypes.addressof(managed.contents)]


def _capsule(array: ndarray) -> object:
    axes = len(array.shape)
    shape = (ctypes.c_int64 * axes)(*array.shape)
    strides = (ctypes.c_int64 * axes)(*(s // array.dtype.itemsize for s in array._plain.strides))
    code = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}[array.dtype.kind]
    managed = _Managed(
        array.data.ptr, array.__dlpack_device__(), axes, (code, 8 * array.dtype.itemsize, 1, 0),
        shape, strides, 0, None, ctypes.cast(_delete, ctypes.c_void_p).value,
    )  # fmt: skip
    _shared[ctypes.addressof(managed)] = (managed, shape, strides, array)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    return new(ctypes.addressof(managed), b"dltensor", None)
