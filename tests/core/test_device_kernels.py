"""The device kernels without a device: compiled by nvcc and NVRTC, and run as plain C++.

The library makes the launches (grid, arguments). Results must have the bits of the host's kernels,
which test_reduce, test_cast and test_codecs compare with an oracle.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import abilities
import float_oracle
import numpy as np
import pytest
from codec_inputs import dtypes_of, kinds
from float_oracle import SIZES, at_offset, encode, random_raw

from hetcomm import _core

pytestmark = pytest.mark.timeout(900)  # the first test compiles all kernels
HERE = Path(__file__).parent
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
HEADER = 64  # bytes of encoded memory before the data
STORED = 16 + 3 * 2 + 1  # the byte of lossless data of three blocks that names their streams
MOST = 5000  # elements
COUNTS = (1, 7, 33, 300, 4099)
SEED = int(os.environ.get("HETCOMM_TEST_SEED", "20260"))
DTYPES = _core.Dtype.__members__
REDUCTIONS = [
    (dtype, op)
    for dtype, value in DTYPES.items()
    for op, operation in _core.ReduceOp.__members__.items()
    if _core.reducible(value, operation) and op not in ("average", "premul_sum")
]
FLOATS = [dtype for dtype in DTYPES if DTYPES[dtype].floating]


def kernels() -> list[str]:
    """Every kernel, by its name in the library."""
    names = [f"reduce_kernel<hetcomm::{dtype}, hetcomm::Op::{op}>" for dtype, op in REDUCTIONS]
    names += [f"scale_kernel<hetcomm::{f}, {way}>" for f in FLOATS for way in ("true", "false")]
    names += [f"cast_kernel<hetcomm::{a}, hetcomm::{b}>" for a in FLOATS for b in FLOATS]
    for kind in ("encode_kernel", "decode_kernel"):
        names += [
            f"{kind}<hetcomm::{dtype}, hetcomm::{code}, {grouping_of(codec)}>"
            for codec, code in BLOCK_CODECS.items()
            for dtype in dtypes_of(codec)
        ]
        names += [f"sparse_{kind}<hetcomm::{dtype}>" for dtype in dtypes_of("topk")]
    for kind in ("measure", "encode", "decode"):
        bits = (f"{dtype.capitalize()}Bits" for dtype in LOSSLESS)
        names += [f"lossless_{kind}_kernel<hetcomm::{each}>" for each in bits]
    return names


def grouping_of(codec: str) -> str:
    """The type of the scale and the elements with one scale."""
    _, group, scale = f"{codec}:256:".split(":")[:3]
    return f"hetcomm::{'Bfloat16' if scale == 'bf16' else 'Float32'}, {group}"


Launch = tuple[str, int, int, list[bytes]]
Run = Callable[[Launch], None]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kernels as a library for this processor."""
    abilities.need("compiler")
    compiler = os.environ.get("CXX", "g++")
    folder = tmp_path_factory.mktemp("kernels")
    names = kernels()
    table = ",\n".join(
        f"[](unsigned b, unsigned t, void** a) {{ shim::launch(&hetcomm::{name}, b, t, a); }}"
        for name in names
    )
    source = folder / "kernels.cc"
    addresses = ", ".join(f"(const void*)&hetcomm::{name}" for name in names)
    source.write_text(
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
    library = folder / "kernels.so"
    subprocess.run(
        [
            compiler,
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-Wno-unknown-pragmas",
            "-shared",
            "-fPIC",
            f"-I{HERE}",
            str(source),
            "-o",
            str(library),
        ],
        check=True,
        timeout=800,
    )
    return library


@pytest.fixture(scope="module")
def run(shim: Path) -> Run:
    """Runs a launch on this processor."""
    loaded = ctypes.CDLL(str(shim))
    names = kernels()

    def run_launch(launch: Launch) -> None:
        kernel, blocks, threads, arguments = launch
        kept = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(buffer) for buffer in kept))
        loaded.run(names.index(kernel), blocks, threads, pointers)

    return run_launch


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


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


def coded(dtype: str, generator: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Elements of every class of bits, in numbers from 0 to 5000: edges of groups and blocks, and
    others at random."""
    edges = (0, 1, 31, 33, 255, 257, 2047, 2048, 2049, 4096)
    chosen = [(count, 2) for count in (*edges, *generator.integers(2, MOST, 6))]
    for count, number in [*chosen, (MOST, len(kinds(dtype, generator, 1)))]:
        made = kinds(dtype, generator, int(count))
        for name in generator.choice(list(made), number, replace=False):
            yield f"seed {SEED}: {count} {name}", made[name]


@pytest.mark.parametrize(("codec", "dtype"), CODED)
def test_encode_has_the_bits_of_the_host(run: Run, codec: str, dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    kind, size = DTYPES[dtype], DTYPES[dtype].size
    for note, raw in coded(dtype, generator):
        count = raw.size // size
        length = _core.codec_capacity(codec, kind, count)
        kept = float_oracle.encode("float32", generator.normal(0, 1e-3, count)).view(np.float32)
        for offset, residual in [(0, None), (size, None), (0, kept), (4, kept)]:
            want = np.empty(length, np.uint8)
            lost = None if residual is None else residual.copy()
            _core.codec_encode(codec, kind, want, raw, lost)
            encoded = at_offset(np.full(HEADER + length + 16, 0xA5, np.uint8), 0)
            source = at_offset(raw, offset)
            own = at_offset(kept.view(np.uint8), offset)
            places = (address(encoded), address(source), 0 if residual is None else address(own))
            for launch in _core.encode_launches(codec, kind, *places, count):
                run(launch)
            np.testing.assert_array_equal(encoded[HEADER : HEADER + length], want, note)
            assert (encoded[:HEADER] == 0xA5).all() and (encoded[HEADER + length :] == 0xA5).all()
            if lost is not None:
                np.testing.assert_array_equal(own, lost.view(np.uint8), note)


@pytest.mark.parametrize(("codec", "dtype"), CODED)
def test_decode_has_the_bits_of_the_host(run: Run, codec: str, dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    kind, size = DTYPES[dtype], DTYPES[dtype].size
    for note, raw in coded(dtype, generator):
        count = raw.size // size
        length = _core.codec_capacity(codec, kind, count)
        parts = []
        for part in (raw, np.roll(raw, size), raw):
            parts.append(at_offset(np.empty(HEADER + length, np.uint8), 0))
            _core.codec_encode(codec, kind, parts[-1][HEADER:], part)
        start = next(iter(kinds(dtype, generator, count).values()))
        for used, first, offset in [(1, False, 0), (3, False, size), (1, True, 0), (2, True, size)]:
            target = at_offset(start, offset)
            want = target.copy()
            data = [part[HEADER:] for part in parts[:used]]
            _core.codec_sum(codec, kind, want, want if first else None, data)
            plain = address(target) if first else 0
            sources = [address(part) for part in parts[:used]]
            run(_core.decode_launch(codec, kind, address(target), plain, sources, count))
            np.testing.assert_array_equal(target, want, f"{note} from {used} {first}")


@pytest.mark.parametrize(("codec", "dtype"), [(c, d) for c, d in CODED if c in SPARSE])
def test_places_that_no_encoder_made_give_nans(run: Run, codec: str, dtype: str) -> None:
    """The host refuses the same bytes. Blocks that did not change keep their values."""
    generator = np.random.default_rng(SEED)
    kind, size = DTYPES[dtype], DTYPES[dtype].size
    refused = 0
    for count in (1, 65, 2048, 2500):
        raw = float_oracle.ordinary_raw(dtype, count, generator)
        length = _core.codec_capacity(codec, kind, count)
        encoded = at_offset(np.empty(HEADER + length, np.uint8), 0)
        _core.codec_encode(codec, kind, encoded[HEADER:], raw)
        for _ in range(10):
            changed = encoded.copy()
            begin = HEADER + int(generator.integers(0, length))
            part = changed[begin : begin + 8]
            part[:] = generator.integers(0, 256, part.size, np.uint8)
            placed = at_offset(changed, 0)
            got, want = np.empty(count * size, np.uint8), np.empty(count * size, np.uint8)
            run(_core.decode_launch(codec, kind, address(got), 0, [address(placed)], count))
            try:
                _core.codec_sum(codec, kind, want, None, [placed[HEADER:]])
            except _core.TransportError:
                refused += 1
                assert np.isnan(float_oracle.decode(dtype, got)).any()
            else:
                np.testing.assert_array_equal(got, want)
    assert refused > 0 or codec == "topk:1"


def shrunk(dtype: str, count: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Elements of every class of bits, and blocks of several classes one after the other."""
    made = kinds(dtype, generator, count)
    yield from made.values()
    if count < 3 * 4096:
        return
    cuts = [0, count // 3 * DTYPES[dtype].size, count // 2 * DTYPES[dtype].size, None]
    for _ in range(3):
        names = generator.choice(list(made), 3, replace=False)
        parts = zip(names, cuts, cuts[1:], strict=False)
        yield np.concatenate([made[name][begin:end] for name, begin, end in parts])


LOSSLESS_COUNTS = (1, 2, 31, 64, 65, 255, 511, 512, 1000, 4095, 4096, 4097, 20_000)


@pytest.mark.parametrize("dtype", LOSSLESS)
def test_lossless_keeps_every_bit(run: Run, dtype: str) -> None:
    """The device encodes, and decodes what either encoder made. The host decodes what the device
    made. Data of one class have the bits of the host's encoder."""
    generator = np.random.default_rng(SEED)
    kind, size = DTYPES[dtype], DTYPES[dtype].size
    shorter = 0
    for count in LOSSLESS_COUNTS:
        capacity = _core.codec_capacity("lossless", kind, count)
        classes = len(kinds(dtype, generator, 1))
        for number, raw in enumerate(shrunk(dtype, count, generator)):
            note = f"seed {SEED}: {count}, data {number}"
            source = at_offset(raw, size)
            encoded = at_offset(np.full(HEADER + capacity + 16, 0xA5, np.uint8), 0)
            for launch in _core.encode_launches(
                "lossless", kind, address(encoded), address(source), 0, count
            ):
                run(launch)
            assert (encoded[HEADER + capacity :] == 0xA5).all(), note
            length = int(encoded[:8].view(np.uint64)[0])
            by_host = np.empty(capacity, np.uint8)
            wanted = _core.codec_encode("lossless", kind, by_host, raw)
            assert length <= wanted, note
            shorter += length < raw.size
            if number < classes:
                assert length == wanted, note
                np.testing.assert_array_equal(
                    encoded[HEADER : HEADER + length], by_host[:wanted], note
                )
            back = np.empty_like(raw)
            _core.codec_decode("lossless", kind, back, encoded[HEADER : HEADER + length].copy())
            np.testing.assert_array_equal(back, raw, note)
            for data in (encoded[HEADER : HEADER + length].copy(), by_host[:wanted]):
                memory = at_offset(np.full(HEADER + capacity, 0x5A, np.uint8), 0)
                memory[:8] = np.array([data.size], np.uint64).view(np.uint8)
                memory[HEADER : HEADER + data.size] = data
                target = at_offset(np.zeros(raw.size + size, np.uint8), size)
                places = (address(target), 0, [address(memory)], count)
                run(_core.decode_launch("lossless", kind, *places))
                np.testing.assert_array_equal(target[: raw.size], raw, note)
                assert (target[raw.size :] == 0).all(), note
    assert shorter > len(LOSSLESS_COUNTS)


@pytest.mark.parametrize("dtype", LOSSLESS)
def test_lossless_data_that_no_encoder_made_give_nans(run: Run, dtype: str) -> None:
    """Lengths and numbers of escapes that do not fit. No access is outside the memory."""
    generator = np.random.default_rng(SEED)
    kind, count = DTYPES[dtype], 10_000
    raw = encode(dtype, generator.normal(size=count))
    capacity = _core.codec_capacity("lossless", kind, count)
    data = np.empty(capacity, np.uint8)
    length = _core.codec_encode("lossless", kind, data, raw)
    assert length < raw.size
    refused = 0
    for number in range(60):
        memory = at_offset(np.zeros(HEADER + capacity, np.uint8), 0)
        given = int(generator.integers(0, length)) if number % 3 == 2 else length
        memory[:8] = np.array([given], np.uint64).view(np.uint8)
        memory[HEADER : HEADER + length] = data[:length]
        end = 40 if number % 3 == 1 else length
        place = int(generator.integers(0, end)) if number else STORED
        memory[HEADER + place] ^= int(generator.integers(1, 256)) if number else 2
        got, want = np.empty_like(raw), np.empty_like(raw)
        run(_core.decode_launch("lossless", kind, address(got), 0, [address(memory)], count))
        try:
            _core.codec_decode("lossless", kind, want, memory[HEADER : HEADER + given])
        except _core.TransportError:
            refused += 1
            assert np.isnan(float_oracle.decode(dtype, got)).any(), f"seed {SEED}: {number}"
        else:
            np.testing.assert_array_equal(got, want, f"seed {SEED}: {number}")
    assert refused >= 20


@pytest.mark.slow
@pytest.mark.needs("nvcc")
def test_nvcc_compiles_every_kernel(tmp_path: Path) -> None:
    """tests/vendors compiles the kernels for other architectures."""
    source = tmp_path / "kernels.cu"
    table = ", ".join(f"(const void*)&hetcomm::{name}" for name in kernels())
    source.write_text(f"{_core.device_text()}\nextern const void* const table[] = {{{table}}};\n")
    ptx = tmp_path / "kernels.ptx"
    options = ["-std=c++17", "--fmad=false", "-Werror", "all-warnings", "-ptx"]
    subprocess.run(
        ["nvcc", *options, "-arch=sm_90", str(source), "-o", str(ptx)],
        env={**os.environ, "LD_PRELOAD": ""},  # nvcc does not survive a sanitizer
        check=True,
        timeout=800,
    )
    assert ptx.read_text().count(".entry") == len(kernels())


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
