"""Arrays in the memory of an emulated device, as a library for such devices would have them."""

from __future__ import annotations

import ctypes

import numpy as np

from hetcomm import _core


class DeviceArray:
    """float32 in the memory of an (emulated) device. Other libraries see the array by DLPack
    alone."""

    class Capsule(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("axes", ctypes.c_int32),
            ("type", ctypes.c_uint8 * 4), ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        )  # fmt: skip

    def __init__(self, device: _core.Device, values: np.ndarray) -> None:
        self.device, self.shape = device, values.shape
        self.stream, self.event = device.make_stream(), device.make_event()
        self.address = device.allocate(values.nbytes)
        self.copy(self.address, values.ctypes.data, values.nbytes)
        self.streams: list[object] = []  # streams that consumers asked for
        self.capsules: list[object] = []

    def copy(self, target: int, source: int, size: int) -> None:
        stream, event = self.stream, self.event
        self.device.copy(target, source, size, stream)
        self.device.record(event, stream)
        while not self.device.passed(event):
            pass

    def numpy(self) -> np.ndarray:
        found = np.empty(self.shape, np.float32)
        self.copy(found.ctypes.data, self.address, found.nbytes)
        return found

    def __dlpack__(self, stream: object = None) -> object:
        self.streams.append(stream)
        kind = {"nvidia": 2, "amd": 10}[self.device.vendor]
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        capsule = self.Capsule(
            self.address, (kind, 0), len(self.shape), (2, 32, 1, 0), shape, None, 0, None, None
        )
        self.capsules.append(capsule)  # the capsule's owner may read it while self exists
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(capsule), b"dltensor", None)
