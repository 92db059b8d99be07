"""A torch device type over the runtime of an emulated vendor.

Tensors of device "emulated" are that vendor's device memory, and torch queues their computations in
its streams. The native part (emulated_device/) is compiled at first use, for the tests only.
"""

from __future__ import annotations

import ctypes
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import compiled
import pytest
import torch

from hetcomm._vendors import vendors

NAME = "emulated"
_HERE = Path(__file__).parent / "emulated_device"
_ROOT = Path(__file__).parents[2]
# Abilities that the tests of this device need.
needed = [
    pytest.mark.needs("emulated vendors", "compiler"),
    pytest.mark.skipif(
        not hasattr(torch.Stream, "native_handle"),
        reason="this torch gives no native streams of devices by extension",
    ),
]


def build() -> Path:
    """The path of the native part. Compiles it if necessary, in about a minute."""
    # One file, so that torch's headers are read once. Another torch needs another library.
    source = f"// torch {torch.__version__}\n"
    source += "".join(f'#include "{file.name}"\n' for file in sorted(_HERE.glob("*.cc")))
    root = Path(torch.__file__).parent
    abi = int(torch.compiled_with_cxx11_abi())
    options = ["-std=c++20", "-O0", "-w", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    options += [f"-I{_HERE}", f"-I{_ROOT}", f"-I{root / 'include'}"]
    libraries = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    includes = [*sorted(_HERE.iterdir()), _ROOT / "emulated/runtime_abi.h"]
    return compiled.library("emulated_device", source, options, libraries, includes)


def _module(library: ctypes.CDLL) -> types.ModuleType:
    """torch.emulated, with the functions that torch expects of a device's module."""
    module = types.ModuleType(f"torch.{NAME}")
    names = {
        "is_available": lambda: bool(library.emulated_device_count()),
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: int(library.emulated_device_count()),
        "current_device": lambda: torch._C._accelerator_getDeviceIndex(),
        "set_device": lambda index: torch._C._accelerator_setDeviceIndex(int(index)),
        "manual_seed_all": lambda seed: None,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    for name, function in names.items():
        setattr(module, name, function)
    return module


class EmulatedDevice:
    """The device of this process, with functions for tests."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(build()))
        self._library.emulated_device_gate.restype = ctypes.c_void_p
        self._library.emulated_device_open.restype = ctypes.c_char_p
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, _module(self._library))
        torch.utils.generate_methods_for_privateuse1_backend()
        self._library.emulated_device_register()
        vendor = os.environ.get("HETCOMM_VENDOR", "")
        if vendor in vendors():
            row = vendors()[vendor]["runtime"]
            failure = self._library.emulated_device_open(
                os.environ[row["variable"]].encode(), row["prefix"].encode()
            )
            if failure:
                raise RuntimeError(failure.decode())
            torch.accelerator.set_device_index(int(os.environ["HETCOMM_DEVICE"]))

    def delay(self, milliseconds: int) -> None:
        """Lets the current stream stand still for a while."""
        self._library.emulated_device_delay(milliseconds)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Lets the current stream stand still until the block ends."""
        gate = ctypes.c_void_p(self._library.emulated_device_gate())
        try:
            yield
        finally:
            self._library.emulated_device_open_gate(gate)

    def recorded(self, address: int) -> int:
        """The number of streams that were recorded on the memory, besides its own."""
        return int(self._library.emulated_device_recorded(ctypes.c_void_p(address)))

    def is_free(self, address: int) -> bool:
        """Whether the next tensor may get the memory."""
        return bool(self._library.emulated_device_is_free(ctypes.c_void_p(address)))


_device: EmulatedDevice | None = None


def load() -> EmulatedDevice:
    """Makes the device type known to torch; once per process, before the process group is made."""
    global _device
    if _device is None:
        _device = EmulatedDevice()
    return _device


if __name__ == "__main__":
    print(build(), file=sys.stderr)
