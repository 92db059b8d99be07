"""The lossless codec: every bit comes back, nothing grows, changed data are refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import instruction_sets
import numpy as np
import pytest
from float_oracle import at_offset
from numpy.typing import NDArray

from hetcomm import _core

SEED = int(os.environ.get("HETCOMM_TEST_SEED", "72"))
DTYPE = _core.Dtype.__members__
FORMATS = ("float32", "float16", "bfloat16")
WORD: dict[str, type] = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
EXPONENT_AT = {"float32": 23, "float16": 10, "bfloat16": 7}
EXPONENT_BITS = {"float32": 8, "float16": 5, "bfloat16": 8}
BLOCK = 4096
FUZZED = int(os.environ.get("HETCOMM_TEST_FUZZED", "2000"))  # changed inputs for each dtype
# Around groups of 64, blocks of 4096, and some beyond.
COUNTS = (*range(67), 127, 128, 129, 1000, 4095, 4096, 4097, 4160, 8191, 8193, 10_000, 70_001)

Bytes = NDArray[np.uint8]
Words = NDArray[np.unsignedinteger]
each_format = pytest.mark.parametrize("dtype", FORMATS)


def encode(dtype: str, data: Bytes, offset: int = 0) -> Bytes:
    """The encoded bytes; fails if the encoder wrote beyond its memory."""
    count = data.size // DTYPE[dtype].size
    room = _core.codec_capacity("lossless", DTYPE[dtype], count)
    whole = at_offset(np.full(room + 64, 0xA5, np.uint8), offset)
    length = _core.codec_encode("lossless", DTYPE[dtype], whole[:room], at_offset(data, 3 * offset))
    assert (whole[room:] == 0xA5).all()
    return whole[:length]


def decode(dtype: str, encoded: Bytes, size: int, offset: int = 0) -> Bytes:
    whole = at_offset(np.full(size + 64, 0x5A, np.uint8), offset)
    _core.codec_decode("lossless", DTYPE[dtype], whole[:size], encoded)
    assert (whole[size:] == 0x5A).all()
    return whole[:size]


def of_scale(dtype: str, generator: np.random.Generator, count: int) -> Bytes:
    """Normally distributed numbers, whose exponents are few."""
    values = generator.normal(0, 1e-3, count).astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(np.float16 if dtype == "float16" else np.float32).view(np.uint8)


def with_exponents(
    dtype: str, generator: np.random.Generator, count: int, exponents: list[int]
) -> Words:
    """Random bits, whose exponents are among those given."""
    word, at = WORD[dtype], EXPONENT_AT[dtype]
    bits = generator.integers(0, np.iinfo(word).max, count, word, endpoint=True)
    mask = word(((1 << EXPONENT_BITS[dtype]) - 1) << at)
    chosen = generator.choice(np.array(exponents), count).astype(word) << word(at)
    return (bits & ~mask) | chosen


def kinds(dtype: str, generator: np.random.Generator, count: int) -> dict[str, Bytes]:
    """Data of every class of bits."""
    word = WORD[dtype]
    size = DTYPE[dtype].size
    top = (1 << EXPONENT_BITS[dtype]) - 1
    made = {
        "normal": of_scale(dtype, generator, count),
        "random": generator.integers(0, 256, count * size, np.uint8),
        "zeros": np.zeros(count * size, np.uint8),
        "negative zeros": np.full(count, 1 << (8 * size - 1), word),
        "one value": np.full(count, 0x3F81, word),
        "subnormals": with_exponents(dtype, generator, count, [0]),
        "infinities and NaNs": with_exponents(dtype, generator, count, [top]),
    }
    for entries in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31):
        some = generator.choice(top + 1, min(entries, top), replace=False)
        made[f"{entries} exponents"] = with_exponents(dtype, generator, count, list(some))
    rare = made["normal"].copy().view(word)
    at_random = generator.random(count) < 0.01
    rare[at_random] = generator.integers(0, np.iinfo(word).max, at_random.sum(), word)
    made["rare exponents"] = rare
    bare = of_scale(dtype, generator, count).view(word) & ~word((1 << (4 * size)) - 1)
    made["short mantissas"] = bare
    return {name: data.view(np.uint8) for name, data in made.items()}


@each_format
def test_every_bit_comes_back_and_nothing_grows(dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    for count in COUNTS:
        for name, data in kinds(dtype, generator, count).items():
            offset = int(generator.integers(0, 8))
            encoded = encode(dtype, data, offset)
            message = f"seed {SEED}: {count} {name} at {offset}"
            assert encoded.size <= data.size, message
            back = decode(dtype, encoded, data.size, offset + 1)
            np.testing.assert_array_equal(back, data, message)


@each_format
def test_mixtures_of_blocks_come_back(dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    for _ in range(10):
        parts = []
        for _ in range(int(generator.integers(1, 60))):
            made = kinds(dtype, generator, int(generator.integers(1, 2 * BLOCK)))
            parts.append(made[str(generator.choice(list(made)))])
        data = np.concatenate(parts)
        encoded = encode(dtype, data)
        assert encoded.size <= data.size
        np.testing.assert_array_equal(decode(dtype, encoded, data.size), data, f"seed {SEED}")


def test_every_bfloat16_and_float16_comes_back() -> None:
    every = np.arange(1 << 16).astype(np.uint16)
    for dtype in ("bfloat16", "float16"):
        for order in (every, every[::-1].copy(), np.random.default_rng(SEED).permutation(every)):
            data = order.view(np.uint8)
            back = decode(dtype, encode(dtype, data), data.size)
            np.testing.assert_array_equal(back, data)


@pytest.mark.parametrize(
    ("dtype", "least"), [("float32", 1.16), ("float16", 1.13), ("bfloat16", 1.4)]
)
def test_normally_distributed_numbers_shrink(dtype: str, least: float) -> None:
    data = of_scale(dtype, np.random.default_rng(SEED), 1 << 20)
    assert data.size / encode(dtype, data).size > least


def test_unused_mantissas_and_zeros_shrink_most() -> None:
    from_bfloat16 = of_scale("float32", np.random.default_rng(SEED), 1 << 18).view(np.uint32)
    from_bfloat16 &= np.uint32(0xFFFF0000)
    assert from_bfloat16.nbytes / encode("float32", from_bfloat16.view(np.uint8)).size > 2.7
    for dtype in FORMATS:
        zeros = np.zeros(1 << 18, np.uint8)
        assert zeros.size / encode(dtype, zeros).size > 800


@each_format
def test_changed_data_are_refused_or_decode_to_something(dtype: str) -> None:
    """Lengths are checked before use: the address sanitizer runs this test as well."""
    generator = np.random.default_rng(SEED)
    refused = 0
    for _ in range(FUZZED // 50):
        count = int(
            generator.choice([1, 50, 700, BLOCK, 2 * BLOCK + 65], p=[0.1, 0.3, 0.4, 0.1, 0.1])
        )
        made = kinds(dtype, generator, count)
        data = made[str(generator.choice(list(made)))]
        original = encode(dtype, data)
        for _ in range(50):
            encoded = original.copy()
            for _ in range(int(generator.integers(1, 4))):
                # The first bytes have the lengths.
                most = encoded.size if generator.random() < 0.5 else min(encoded.size, 48)
                encoded[generator.integers(0, most)] = generator.integers(0, 256)
            if generator.random() < 0.3:
                encoded = encoded[: generator.integers(0, encoded.size + 1)].copy()
            try:
                decode(dtype, encoded, data.size)
            except _core.TransportError:
                refused += 1
    assert refused > FUZZED / 10


@each_format
def test_truncated_data_are_refused(dtype: str) -> None:
    data = of_scale(dtype, np.random.default_rng(SEED), 3 * BLOCK)
    encoded = encode(dtype, data)
    for length in (0, 1, 7, 8, 13, 14, 20, encoded.size // 2, encoded.size - 1):
        with pytest.raises(_core.TransportError, match="lossless data: expected"):
            decode(dtype, encoded[:length], data.size)
    with pytest.raises(_core.TransportError, match="lossless data: expected"):
        decode(dtype, np.append(encoded, np.uint8(0)), data.size)


def test_data_of_another_dtype_or_count_are_refused() -> None:
    data = of_scale("bfloat16", np.random.default_rng(SEED), 2 * BLOCK)
    encoded = encode("bfloat16", data)
    with pytest.raises(_core.TransportError, match="expected data of float16; got other data"):
        decode("float16", encoded, data.size)
    for size in (data.size - 2, data.size + 2, 3 * data.size):
        with pytest.raises(_core.TransportError):
            decode("bfloat16", encoded, size)


def test_another_count_of_equal_elements_is_refused() -> None:
    """Such elements take the same bytes in any count."""
    for count in (9_000, 12_000):
        with pytest.raises(_core.TransportError, match=f"expected {count} elements; got 10000"):
            decode("float32", encode("float32", np.zeros(40_000, np.uint8)), 4 * count)


def test_impossible_calls_are_rejected() -> None:
    four, room = np.zeros(4, np.float32), np.zeros(64, np.uint8)
    float32 = DTYPE["float32"]
    needed = _core.codec_capacity("lossless", float32, 4)
    cases: list[tuple[str, tuple[object, ...]]] = [
        ("got float64; send", (DTYPE["float64"], room[:needed], four)),
        ("got int32; send", (DTYPE["int32"], room[:needed], four)),
        (f"encoded: expected {needed} bytes; got 64", (float32, room, four)),
        ("a multiple of 4 bytes", (float32, room[:needed], four.view(np.uint8)[:15])),
        ("an overlap", (float32, room[:needed], room[8:24])),
    ]
    for message, arguments in cases:
        with pytest.raises(_core.InvalidArgumentError, match=re.escape(message)):
            _core.codec_encode("lossless", *arguments)
    with pytest.raises(_core.InvalidArgumentError, match="got uint8"):
        _core.codec_decode("lossless", DTYPE["uint8"], four, room)


@pytest.mark.slow
@instruction_sets.others
def test_every_instruction_set_passes_these_tests(name: str) -> None:
    instruction_sets.run_tests(name, __file__)


@pytest.mark.slow
@instruction_sets.others
def test_every_instruction_set_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(SEED)
    for dtype in FORMATS:
        data = np.concatenate(list(kinds(dtype, generator, 10_000).values()))
        data.tofile(tmp_path / f"{dtype}.data")
        encode(dtype, data).tofile(tmp_path / f"{dtype}.here")
    program = f"""
import numpy as np
from hetcomm import _core
for name in {FORMATS}:
    dtype = _core.Dtype.__members__[name]
    data = np.fromfile("{tmp_path}/" + name + ".data", np.uint8)
    room = np.zeros(_core.codec_capacity("lossless", dtype, data.size // dtype.size), np.uint8)
    length = _core.codec_encode("lossless", dtype, room, data)
    assert room[:length].tobytes() == open("{tmp_path}/" + name + ".here", "rb").read(), name
print("equal")
"""
    assert instruction_sets.run_program(name, program).stdout.strip() == "equal"


def test_lossless_kernels_share_no_inline_function() -> None:
    """They are compiled for several processors: see the first lines of reduction_kernels.inc."""
    codec = Path(__file__).parents[2] / "csrc" / "codec"
    includes: set[str] = set()
    for path in codec.glob("lossless_kernels*"):
        includes |= set(re.findall(r"#include [<\"](.*)[>\"]", path.read_text()))
    own = {"codec/lossless_kernels.h", "codec/lossless_kernels.inc", "base/elements.inc"}
    own |= {"device/kernels/numbers.cuh", "device/kernels/symbols.cuh"}  # which include nothing
    assert includes == {"cstddef", "cstdint", "immintrin.h", "arm_neon.h"} | own
