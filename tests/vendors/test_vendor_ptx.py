"""Every architecture's code of the device kernels, by NVRTC of several versions.

PTX is what NVRTC makes for a virtual architecture. The text shows what a kernel does with memory.
"""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import vendor_wheels as wheels
from kernel_shim import kernels

from hetcomm import _core

pytestmark = pytest.mark.needs("vendors' wheels")
# CUDA 13 dropped Volta (70), and 12.8 brought Blackwell (100, 120).
ARCHITECTURES = {"11.8": (70, 80, 90), "12.9": (70, 90, 120), "13.5": (80, 90, 100, 120)}
# Kernels of two dtypes, and one size of group for each codec: sizes change counts of loops alone.
KERNELS = [
    name
    for name in kernels()
    if re.search(r"<hetcomm::([Bb]float16|float8_e5m2)", name)
    and not re.search(r", (?!256\b)\d+(, \w+)?>$", name)
]
BY_ELEMENTS = ("sparse_", "lossless_")  # kernels whose threads access single elements or bytes
CASES = [(version, number) for version in wheels.CUDA for number in ARCHITECTURES[version]]


@cache
def compiler(version: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(wheels.library(f"CUDA {version}", "libnvrtc.so")))


def ptx(version: str, architecture: int) -> dict[str, str]:
    """[kernel] -> its PTX"""
    nvrtc = compiler(version)
    program = ctypes.c_void_p()
    text = _core.device_text().encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"k.cu", 0, None, None) == 0
    try:
        for kernel in KERNELS:
            assert nvrtc.nvrtcAddNameExpression(program, f"hetcomm::{kernel}".encode()) == 0
        options = [f"--gpu-architecture=compute_{architecture}", "--std=c++17", "--fmad=false"]
        given = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        error = nvrtc.nvrtcCompileProgram(program, len(options), given)
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        assert error == 0, log.value.decode()
        nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
        made = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetPTX(program, made)
        names = {}
        for kernel in KERNELS:
            symbol = ctypes.c_char_p()
            nvrtc.nvrtcGetLoweredName(program, f"hetcomm::{kernel}".encode(), ctypes.byref(symbol))
            names[symbol.value.decode()] = kernel  # type: ignore[union-attr]
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    parts = re.split(r"\.entry (\w+)\(", made.value.decode())
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert found.keys() == names.keys()
    return {names[symbol]: body for symbol, body in found.items()}


def widths(body: str, kind: str) -> set[int]:
    """Bytes of the loads ("ld") or stores ("st") of global memory."""
    found = set()
    for lanes, bits in re.findall(rf"\b{kind}\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)", body):
        found.add(int(lanes or 1) * int(bits) // 8)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("version", "architecture"), CASES)
def test_kernels_use_registers_and_vectors(version: str, architecture: int) -> None:
    """No kernel keeps values in local memory, and each accesses global memory by 16 bytes,
    or by the 32 that Blackwell has, but for those that access elements or bytes."""
    with ThreadPoolExecutor(1) as thread:  # NVRTC 11.8 changes the locale of its thread
        made = thread.submit(ptx, version, architecture).result()
    assert [name for name, body in made.items() if ".local" in body] == []
    wide = {
        name: max(widths(body, "ld") | widths(body, "st"))
        for name, body in made.items()
        if not name.startswith(BY_ELEMENTS)
    }
    assert {name: width for name, width in wide.items() if width not in (16, 32)} == {}
