"""A rank's buffers in device or host memory, and the rates of its copy engines."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from hetcomm import _core
from hetcomm.timing import seconds_of

PATIENCE = 60.0  # seconds for the work of a device


class Buffers:
    """The buffers of one rank, on NVIDIA device 0 or in host memory."""

    def __init__(self, on_gpu: bool) -> None:
        self.device = _core.Device.open("nvidia", 0) if on_gpu else None
        if self.device:
            self.streams = [self.device.make_stream() for _ in range(2)]
            self.events = [self.device.make_event() for _ in range(2)]
        self.kept: list[np.ndarray] = []

    def make(self, size: int, pinned: bool = False) -> int:
        """The address of new memory: the device's, or host memory that copy engines reach."""
        if self.device:
            return self.device.allocate_pinned(size) if pinned else self.device.allocate(size)
        array = np.zeros(size, np.uint8)
        self.kept.append(array)
        return array.ctypes.data

    def wait(self) -> None:
        """Waits for all work of the streams."""
        assert self.device is not None
        for stream, event in zip(self.streams, self.events, strict=True):
            self.device.record(event, stream)
        end = time.monotonic() + PATIENCE
        while not all(self.device.passed(event) for event in self.events):
            if time.monotonic() > end:
                raise TimeoutError(f"the device has not finished within {PATIENCE} s")

    def copy(self, target: int, source: int, size: int) -> None:
        if self.device:
            self.device.copy(target, source, size, self.streams[0])
            self.wait()
        else:
            ctypes.memmove(target, source, size)

    def write(self, address: int, values: np.ndarray) -> None:
        self.copy(address, values.ctypes.data, values.nbytes)

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        values = np.empty_like(like)
        self.copy(values.ctypes.data, address, values.nbytes)
        return values

    def copy_rate(self, pairs: list[tuple[int, int]], size: int, times: int) -> float:
        """Bytes per second and direction when each (target, source) is copied on its stream."""
        assert self.device is not None
        copy, streams = self.device.copy, self.streams

        def copies() -> None:
            for stream, (target, source) in zip(streams, pairs, strict=False):
                copy(target, source, size, stream)

        self.wait()
        return times * size / seconds_of(copies, times, self.wait)
