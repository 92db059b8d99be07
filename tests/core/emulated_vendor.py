"""The emulated vendor libraries by ctypes, as a program of that vendor would call them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import hetcomm
from hetcomm._vendors import vendors

PACKAGE = Path(hetcomm.__file__).parent
INVALID_VALUE, NO_DEVICE, INVALID_DEVICE, INVALID_HANDLE, NOT_READY = 1, 100, 101, 400, 600
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
BOUND = 30  # seconds; no test takes one


def path(vendor: str) -> Path:
    return PACKAGE / f"libhetcomm_emulated_{vendor}.so"


class PointerAttributes(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("device_pointer", ctypes.c_void_p),
        ("host_pointer", ctypes.c_void_p),
        ("rest", ctypes.c_long * 8),
    )


class Runtime:
    """The runtime of one vendor. A call that returns another number than 0 raises OSError with
    it."""

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self.library = ctypes.CDLL(str(path(vendor)))

    def code(self, name: str, *arguments: Any) -> int:
        """The return value of the function."""
        row = vendors()[self.vendor]["runtime"]
        spelling = row.get("spellings", {}).get(name, [name])[0]
        return int(self.library[row["prefix"] + spelling](*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        if code := self.code(name, *arguments):
            raise OSError(code, f"{name} returned {code}")

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self("StreamCreateWithPriority", ctypes.byref(stream), 1, ctypes.c_int(-5))
        return stream

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self("EventCreateWithFlags", ctypes.byref(event), 2)
        return event

    def block(self, size: int, pinned: bool = False) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        if pinned:
            self("HostAlloc", ctypes.byref(pointer), ctypes.c_size_t(size), 1)
        else:
            self("Malloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def copy(self, target: Any, source: Any, size: int, stream: Any, kind: int = 4) -> None:
        self("MemcpyAsync", target, source, ctypes.c_size_t(size), kind, stream)

    def attributes(self, pointer: Any) -> PointerAttributes:
        attributes = PointerAttributes()
        self("PointerGetAttributes", ctypes.byref(attributes), pointer)
        return attributes


class Gate:
    """A host function that holds a stream until it is opened."""

    def __init__(self, runtime: Runtime, stream: ctypes.c_void_p) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self._function = HostFunction(self._hold)  # kept alive: the stream calls it later
        runtime("LaunchHostFunc", stream, self._function, None)

    def _hold(self, _: int) -> None:
        self.entered.set()
        self.opened.wait(BOUND)


def run(program: str, *arguments: str, timeout: float = 60, **environment: str) -> str:
    """The output of the Python text `program` in a separate process."""
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{PACKAGE.parent}"} | environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=True,
    ).stdout
