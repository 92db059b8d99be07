"""The device kernels without a device: compiled by nvcc and NVRTC, and run as plain C++.

The library makes the launches (grid, arguments). Results must have the bits of the host's kernels,
which test_reduce and test_cast compare with an oracle. test_device_codecs has the codecs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from float_oracle import SIZES, at_offset, encode, random_raw
from kernel_shim import DTYPES, FLOATS, REDUCTIONS, SEED, Run, address, kernels

from hetcomm import _core

pytestmark = pytest.mark.timeout(900)  # the first test compiles all kernels
HERE = Path(__file__).parent
COUNTS = (1, 7, 33, 300, 4099)


def random_elements(dtype: str, count: int, generator: np.random.Generator) -> np.ndarray:
    if dtype in SIZES:
        return random_raw(dtype, count, generator)
    raw = generator.integers(0, 256, count * DTYPES[dtype].size, dtype=np.uint8)
    if dtype == "boolean":
        raw[generator.random(count) < 0.5] = 0
    return raw


def placements(element: int) -> list[int]:
    """Offsets from 64 bytes that elements of a size may have."""
    return sorted({0, element, 16 - element})


@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_reduce_has_the_bits_of_the_host(run: Run, dtype: str, op: str) -> None:
    generator = np.random.default_rng(SEED)
    operation = (DTYPES[dtype], _core.ReduceOp.__members__[op])
    size = DTYPES[dtype].size
    for sources in (1, 2, 5):
        for count in COUNTS:
            raws = [random_elements(dtype, count, generator) for _ in range(sources)]
            want = np.empty(count * size, np.uint8)
            _core.reduce(*operation, want, raws)
            for offset in placements(size):
                for shift in (0, size):  # offset of the target from the sources
                    placed = [at_offset(raw, offset) for raw in raws]
                    target = at_offset(np.zeros_like(want), offset + shift)
                    run(
                        _core.reduce_launch(
                            *operation, address(target), [address(p) for p in placed], count
                        )
                    )
                    np.testing.assert_array_equal(
                        target, want, f"seed {SEED}: {sources} x {count} at {offset}+{shift}"
                    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("by", "divides"), [(0.375, False), (-3.0, False), (3.0, True)])
def test_scale_has_the_bits_of_the_host(run: Run, dtype: str, by: float, divides: bool) -> None:
    generator = np.random.default_rng(SEED)
    size = DTYPES[dtype].size
    for count in COUNTS:
        raw = random_elements(dtype, count, generator)
        want = np.empty(count * size, np.uint8)
        if divides:  # an average is a sum that is divided; -0.0 is its neutral element
            zeros = [encode(dtype, np.full(count, -0.0))] * (int(by) - 1)
            _core.reduce(DTYPES[dtype], _core.ReduceOp.average, want, [raw, *zeros])
        else:
            _core.reduce(DTYPES[dtype], _core.ReduceOp.premul_sum, want, [raw], by)
        for offset in placements(size):
            for shift in (0, size, None):  # offset of the target from the source; None: in place
                source = at_offset(raw, offset)
                target = source
                if shift is not None:
                    target = at_offset(np.zeros_like(want), offset + shift)
                places = (address(target), address(source), count)
                run(_core.scale_launch(DTYPES[dtype], by, divides, *places))
                note = f"seed {SEED}: {count} at {offset}+{shift}"
                np.testing.assert_array_equal(target, want, note)


def test_reduce_works_in_place(run: Run) -> None:
    generator = np.random.default_rng(SEED)
    operation = (DTYPES["bfloat16"], _core.ReduceOp.sum)
    raws = [random_raw("bfloat16", 4099, generator) for _ in range(3)]
    want = np.empty_like(raws[0])
    _core.reduce(*operation, want, raws)
    placed = [at_offset(raw, 6) for raw in raws]
    launch = _core.reduce_launch(*operation, address(placed[1]), [address(p) for p in placed], 4099)
    run(launch)
    np.testing.assert_array_equal(placed[1], want)


@pytest.mark.parametrize("target_format", FLOATS)
@pytest.mark.parametrize("source_format", FLOATS)
def test_cast_has_the_bits_of_the_host(run: Run, source_format: str, target_format: str) -> None:
    generator = np.random.default_rng(SEED)
    to, source = DTYPES[target_format], DTYPES[source_format]
    for count in COUNTS:
        raw = random_raw(source_format, count, generator)
        want = np.empty(count * to.size, np.uint8)
        _core.cast(to, want, source, raw)
        for offset, shift in [(0, 0), (1, 1), (3, 3), (0, 1)]:  # in elements
            placed = at_offset(raw, offset * source.size)
            target = at_offset(np.zeros_like(want), shift * to.size)
            run(_core.cast_launch(to, address(target), source, address(placed), count))
            np.testing.assert_array_equal(target, want, f"seed {SEED}: {count} at {offset} {shift}")


@pytest.mark.slow
@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("part", range(4))
def test_nvcc_compiles_every_kernel(tmp_path: Path, part: int) -> None:
    """tests/vendors compiles the kernels for other architectures. Most kernels are of codecs of
    blocks, so these are in parts. A part without other kernels would have unused functions."""
    source = tmp_path / "kernels.cu"
    blocks = [name for name in kernels() if name.startswith(("encode", "decode"))]
    names = [name for name in kernels() if name not in blocks] + blocks[part::4]
    table = ", ".join(f"(const void*)&hetcomm::{name}" for name in names)
    source.write_text(f"{_core.device_text()}\nextern const void* const table[] = {{{table}}};\n")
    ptx = tmp_path / "kernels.ptx"
    options = ["-std=c++17", "--fmad=false", "-Werror", "all-warnings", "-ptx"]
    subprocess.run(
        ["nvcc", *options, "-arch=sm_90", str(source), "-o", str(ptx)],
        env={**os.environ, "LD_PRELOAD": ""},  # nvcc does not survive a sanitizer
        check=True,
        timeout=800,
    )
    assert ptx.read_text().count(".entry") == len(names)


needs_nvrtc = pytest.mark.needs("NVRTC")


@needs_nvrtc
@pytest.mark.parametrize("kernel", [name for name in kernels() if "bfloat16" in name.lower()])
def test_nvrtc_compiles_the_kernel(kernel: str) -> None:
    code, symbol = _core.compile_kernel("nvidia", "sm_90", kernel)
    assert code[:4] == b"\x7fELF"
    assert symbol.encode() in code and kernel.split("<")[0] in symbol


@needs_nvrtc
def test_nvrtc_errors_are_quoted() -> None:
    with pytest.raises(_core.VendorError, match=r"NVRTC.*no_such_kernel"):
        _core.compile_kernel("nvidia", "sm_90", "no_such_kernel<int>")
    with pytest.raises(_core.VendorError, match=r"for sm_1: [\s\S]*gpu-architecture"):
        _core.compile_kernel("nvidia", "sm_1", kernels()[0])


FAKE_GPU_CASE = """
import ctypes
import numpy as np
from hetcomm import _core

device = _core.Device.open("nvidia", 0)
kernels = _core.DeviceKernels.of(device)
print(kernels.description)
count = 5000
at = lambda array: array.ctypes.data
half, add = _core.Dtype.float16, _core.ReduceOp.sum
a, b = (np.random.default_rng(seed).normal(size=count).astype(np.float16) for seed in (1, 2))
want, got = np.empty_like(a), np.empty_like(a)
_core.reduce(half, add, want, [a, b])
kernels.reduce(half, add, at(got), [at(a), at(b)], count, 0)
assert (want == got).all()
to, source = _core.Dtype.float8_e5m2, half
want, got = np.empty(count, np.uint8), np.empty(count, np.uint8)
_core.cast(to, want, source, a)
kernels.cast(to, at(got), source, at(a), count, 0)
assert (want == got).all()
block = np.empty(_core.codec_capacity("int4", half, count), np.uint8)
lost, kept = np.ones(count, np.float32), np.ones(count, np.float32)
_core.codec_encode("int4", half, block, a, lost)
memory = device.allocate(64 + len(block))  # encoded memory begins with a header
kernels.encode("int4", half, memory, at(a), at(kept), count, 0)
assert bytes(block) == ctypes.string_at(memory + 64, len(block))
assert (lost == kept).all()
want, got = b.copy(), b.copy()
_core.codec_sum("int4", half, want, want, [block])
kernels.decode("int4", half, at(got), at(got), [memory], count, 0)
assert (want == got).all()
memory = device.allocate(64 + _core.codec_capacity("lossless", half, count))
kernels.encode("lossless", half, memory, at(a), 0, count, 0)
assert ctypes.c_uint64.from_address(memory).value < a.nbytes
kernels.decode("lossless", half, at(got), 0, [memory], count, 0)
assert (a == got).all()
kernels.reduce(_core.Dtype.int64, _core.ReduceOp.bxor, 0, [0], 0, 0)  # compiles only
try:
    kernels.reduce(half, add, 1, [0], 1, 0)
except _core.InvalidArgumentError:
    print("done")
"""


@pytest.fixture(scope="module")
def fake_gpu(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the vendor "nvidia" is this processor."""
    compiler = os.environ.get("CC", "gcc")
    folder = tmp_path_factory.mktemp("fake_gpu")
    library = folder / "libcuda.so.1"
    subprocess.run(
        [compiler, "-w", "-shared", "-fPIC", str(HERE / "fake_gpu.c"), "-o", str(library)],
        check=True,
        timeout=60,
    )
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(shim)])),
        "HETCOMM_CUDA_LIBRARY": str(library),
        "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "HETCOMM_KERNEL_CACHE": str(folder / "kernels"),
    }


@needs_nvrtc
def test_kernels_compile_and_launch_on_a_fake_gpu(fake_gpu: dict[str, str]) -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-c", FAKE_GPU_CASE],
        env=fake_gpu,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "NVRTC" in result.stdout and ", sm_90\ndone" in result.stdout
    assert len(list(Path(fake_gpu["HETCOMM_KERNEL_CACHE"]).iterdir())) >= 5


@needs_nvrtc
def test_the_benchmark_runs(fake_gpu: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    only = "int8, float32"
    command = [sys.executable, "-P", str(HERE.parents[1] / "bench" / "device_kernels.py")]
    arguments = ["--bytes", "100000", "--seconds", "0", "--only", only, "--output", str(report)]
    subprocess.run([*command, *arguments], env=fake_gpu, timeout=240, check=True)
    rows = json.loads(report.read_text())["rows"]
    names = ["encode", "encode with residual", "decode and add"]
    assert [row["kernel"] for row in rows] == [f"{name} {only}" for name in names]
    assert all(row["ratio"] > 0 for row in rows)
