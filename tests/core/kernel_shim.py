"""The device kernels as a library for this processor: names, build and launches."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from pathlib import Path

import compiled
import numpy as np
from codec_inputs import dtypes_of

from hetcomm import _core

HERE = Path(__file__).parent
SEED = int(os.environ.get("HETCOMM_TEST_SEED", "20260"))
DTYPES = _core.Dtype.__members__
REDUCTIONS = [
    (dtype, op)
    for dtype, value in DTYPES.items()
    for op, operation in _core.ReduceOp.__members__.items()
    if _core.reducible(value, operation) and op not in ("average", "premul_sum")
]
FLOATS = [dtype for dtype in DTYPES if DTYPES[dtype].floating]
GROUPS = (32, 64, 128, 256, 512, 1024, 2048)
# Codecs of blocks, and their codes.
BLOCK_CODECS = {
    "bf16": "Bf16",
    "fp16": "Fp16",
    **{f"int8:{group}": "Int8" for group in GROUPS},
    **{f"int4:{group}": "Int4" for group in GROUPS},
    **{f"fp8_e4m3:{group}": "Fp8E4m3" for group in (32, 256, 2048)},
    **{f"fp8_e5m2:{group}": "Fp8E5m2" for group in (32, 256, 2048)},
    **{f"int8:{group}:bf16": "Int8" for group in (32, 64, 256, 2048)},
    **{f"int4:{group}:bf16": "Int4" for group in (32, 256)},
    **{f"fp8_e4m3:{group}:bf16": "Fp8E4m3" for group in (32, 256)},
    "fp8_e5m2:128:bf16": "Fp8E5m2",
}
SPARSE = ("topk", "topk:0.3", "topk:0.06", "topk:0.0001", "topk:1")
CODED = [(codec, dtype) for codec in (*BLOCK_CODECS, *SPARSE) for dtype in dtypes_of(codec)]
LOSSLESS = dtypes_of("lossless")

Launch = tuple[str, int, int, list[bytes]]
Run = Callable[[Launch], None]


def kernels() -> list[str]:
    """Every kernel, by its name in the library."""
    names = [f"reduce_kernel<hetcomm::{dtype}, hetcomm::Op::{op}>" for dtype, op in REDUCTIONS]
    names += [f"scale_kernel<hetcomm::{f}, {way}>" for f in FLOATS for way in ("true", "false")]
    names += [f"cast_kernel<hetcomm::{a}, hetcomm::{b}>" for a in FLOATS for b in FLOATS]
    for codec, code in BLOCK_CODECS.items():
        for dtype in dtypes_of(codec):
            block = f"hetcomm::{dtype}, hetcomm::{code}, {grouping_of(codec)}"
            names += [f"encode_kernel<{block}, {feedback}>" for feedback in ("true", "false")]
            names.append(f"decode_kernel<{block}>")
    for kind in ("encode", "decode"):
        names += [f"sparse_{kind}_kernel<hetcomm::{dtype}>" for dtype in dtypes_of("topk")]
    for kind in ("measure", "encode", "decode"):
        bits = (f"{dtype.capitalize()}Bits" for dtype in LOSSLESS)
        names += [f"lossless_{kind}_kernel<hetcomm::{each}>" for each in bits]
    return names


def grouping_of(codec: str) -> str:
    """The type of the scale and the elements with one scale."""
    _, group, scale = f"{codec}:256:".split(":")[:3]
    return f"hetcomm::{'Bfloat16' if scale == 'bf16' else 'Float32'}, {group}"


def build() -> Path:
    """All kernels as a library for this processor. Needs a compiler."""
    options = ["-std=c++17", "-O1", "-ffp-contract=off", *_fused(), "-fno-strict-aliasing"]
    options += ["-Wno-unknown-pragmas", f"-I{HERE}"]
    return compiled.library("device_kernels", _source(), options, includes=[HERE / "kernel_shim.h"])


def _source() -> str:
    names = kernels()
    table = ",\n".join(
        f"[](unsigned b, unsigned t, void** a) {{ shim::launch(&hetcomm::{name}, b, t, a); }}"
        for name in names
    )
    addresses = ", ".join(f"(const void*)&hetcomm::{name}" for name in names)
    return (
        f'#include "kernel_shim.h"\n#include <dlfcn.h>\n{_core.device_text()}\n'
        f"using Run = void (*)(unsigned, unsigned, void**);\nconst Run table[] = {{{table}}};\n"
        f"const void* const addresses[] = {{{addresses}}};\n"
        'extern "C" void run(int kernel, unsigned blocks, unsigned threads, void** arguments) {\n'
        "  table[kernel](blocks, threads, arguments);\n}\n"
        'extern "C" int run_symbol(const char* symbol, unsigned b, unsigned t, void** a) {\n'
        "  const void* wanted = dlsym(RTLD_DEFAULT, symbol);\n"
        f"  for (int kernel = 0; kernel < {len(names)}; ++kernel) {{\n"
        "    if (addresses[kernel] == wanted) return run(kernel, b, t, a), 0;\n"
        "  }\n  return 500;\n}\n"
    )


def _fused() -> list[str]:
    """The processor's own fmaf(), as devices have it, where g++ takes a library's by default."""
    if platform.machine() != "x86_64":
        return []
    return ["-mfma"] if "fma" in Path("/proc/cpuinfo").read_text().split() else []


def runner(library: Path) -> Run:
    """Runs a launch on this processor."""
    loaded = ctypes.CDLL(str(library))
    names = kernels()

    def run_launch(launch: Launch) -> None:
        kernel, blocks, threads, arguments = launch
        kept = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(buffer) for buffer in kept))
        loaded.run(names.index(kernel), blocks, threads, pointers)

    return run_launch


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)
