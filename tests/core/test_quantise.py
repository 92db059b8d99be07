"""Block quantisation on the host against float64 NumPy, on every instruction set."""

from __future__ import annotations

import os
import re
from pathlib import Path

import float_oracle as oracle
import instruction_sets
import numpy as np
import pytest
from float_oracle import at_offset, decode, encode, ordinary_raw, random_raw
from hypothesis import given, settings
from hypothesis import strategies as some

from hetcomm import _core

SEED = int(os.environ.get("HETCOMM_TEST_SEED", "72"))
DTYPE = _core.Dtype.__members__
QUANTISED = ("float32", "float16", "bfloat16")
GROUPS = (32, 64, 256, 2048)
SCALES = ("float32", "bfloat16")
COUNTS = (0, 1, 7, 31, 33, 255, 1000, 4099)

each_dtype = pytest.mark.parametrize("dtype", QUANTISED)
each_width = pytest.mark.parametrize("bits", [8, 4])
each_group = pytest.mark.parametrize("group", GROUPS)
each_scale = pytest.mark.parametrize("scale", SCALES)


def quantise(
    dtype: str, bits: int, group: int, raw: np.ndarray, offset: int = 0, scale: str = "float32"
) -> np.ndarray:
    how = _core.Quantisation(bits, group, DTYPE[scale])
    count = raw.size // DTYPE[dtype].size
    encoded = at_offset(np.full(how.encoded_bytes(count), 0xA5, np.uint8), offset)
    _core.quantise(DTYPE[dtype], how, encoded, at_offset(raw, 3 * offset))
    return encoded


def dequantise(
    dtype: str,
    bits: int,
    group: int,
    encoded: list[np.ndarray],
    target: np.ndarray,
    add: bool,
    scale: str = "float32",
) -> None:
    how = _core.Quantisation(bits, group, DTYPE[scale])
    _core.dequantise(DTYPE[dtype], how, target, encoded, target if add else None)


@each_scale
@each_group
@each_width
@each_dtype
def test_quantise_matches_the_oracle(dtype: str, bits: int, group: int, scale: str) -> None:
    generator = np.random.default_rng(SEED)
    for count in COUNTS:
        raw = ordinary_raw(dtype, count, generator)
        wild = generator.random(count) < 1 / (2 * group)
        raw = np.where(np.repeat(wild, DTYPE[dtype].size), random_raw(dtype, count, generator), raw)
        want = oracle.pack(bits, *oracle.quantise(dtype, bits, group, raw, scale), scale)
        for offset in (0, 1, 2, 5):
            got = quantise(dtype, bits, group, raw, offset, scale)
            np.testing.assert_array_equal(got, want, f"seed {SEED}: {count} at {offset}")


@each_scale
@each_group
@each_width
@each_dtype
def test_dequantise_matches_the_oracle(dtype: str, bits: int, group: int, scale: str) -> None:
    generator = np.random.default_rng(SEED)
    for count in COUNTS:
        raws = [ordinary_raw(dtype, count, generator) for _ in range(3)]
        if count > 100:
            raws[1][: DTYPE[dtype].size] = encode(dtype, np.array([np.inf]))
        blocks = [oracle.quantise(dtype, bits, group, raw, scale) for raw in raws]
        packed = [oracle.pack(bits, *block, scale) for block in blocks]
        start = random_raw(dtype, count, generator)
        for used, add in [(1, False), (1, True), (3, False), (3, True)]:
            want = oracle.dequantise(dtype, group, blocks[:used], start if add else None)
            for offset in (0, 1, 5):
                target = at_offset(start, offset)
                placed = [at_offset(block, offset + 1) for block in packed[:used]]
                dequantise(dtype, bits, group, placed, target, add, scale)
                message = f"seed {SEED}: {count} from {used} {add} at {offset}"
                np.testing.assert_array_equal(target, want, message)


magnitude = some.floats(0, 3.4028234663852886e38, width=32)
numbers = some.lists(
    some.one_of(some.floats(-1, 1, width=32), some.sampled_from([0.0, 0.5, 1.0, -1.0, 2.0**-149])),
    min_size=1,
    max_size=70,
)


@each_scale
@each_width
@settings(max_examples=200, deadline=None)
@given(values=numbers, largest=magnitude)
def test_the_error_is_at_most_half_a_scale(
    bits: int, scale: str, values: list[float], largest: float
) -> None:
    """The elements, scales and codes are exact in float64, so the arithmetic is exact."""
    group = 32
    raw = (np.array(values, np.float32) * np.float32(largest)).view(np.uint8)
    encoded = quantise("float32", bits, group, raw, 0, scale)
    offset = _core.Quantisation(bits, group, DTYPE[scale]).codes_offset(len(values))
    scales = decode(scale, encoded[:offset])
    codes = encoded[offset:].astype(np.int64)
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=1).ravel()[: len(values)]
    codes = np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes)
    each = np.repeat(scales, group)[: len(values)]
    errors = np.abs(decode("float32", raw) - codes * each)
    assert (errors <= each / 2 * (1 + 2.0**-16)).all()
    assert (np.abs(codes) < 1 << (bits - 1)).all()


@each_width
def test_a_group_with_an_overflow_decodes_to_nan_and_the_others_do_not(bits: int) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        values = np.ones(96, np.float32)
        values[40] = bad
        encoded = quantise("float32", bits, 32, values.view(np.uint8))
        target = np.zeros(96, np.float32)
        dequantise("float32", bits, 32, [encoded], target.view(np.uint8), False)
        assert (target.view(np.uint32)[32:64] == 0x7FC00000).all()
        np.testing.assert_allclose(target[[0, 31, 64, 95]], 1, rtol=1e-6)


@each_width
def test_zeros_and_the_smallest_numbers_survive(bits: int) -> None:
    for value in (0.0, -0.0, 2.0**-149, 2.0**-126, 2.0**-124):
        values = np.full(32, value, np.float32)
        encoded = quantise("float32", bits, 32, values.view(np.uint8))
        assert encoded[:4].view(np.float32) == np.float32(2.0**-124)
        target = np.ones(32, np.float32)
        dequantise("float32", bits, 32, [encoded], target.view(np.uint8), False)
        assert (target == (0.0 if value < 2.0**-124 else value)).all()


def test_the_layout_is_as_documented() -> None:
    how = _core.Quantisation(4, 32)
    assert (how.codes_offset(33), how.encoded_bytes(33)) == (16, 16 + 17)
    assert (how.codes_offset(32 * 5), how.encoded_bytes(32 * 5)) == (32, 32 + 80)
    assert how.encoded_bytes(0) == 0
    narrow = _core.Quantisation(4, 32, DTYPE["bfloat16"])
    assert (narrow.codes_offset(32 * 8), narrow.encoded_bytes(32 * 9)) == (16, 32 + 144)
    values = np.zeros(33, np.float32)
    values[:3] = 7, -7, 1
    values[32] = -2
    encoded = quantise("float32", 4, 32, values.view(np.uint8))
    assert encoded[:16].view(np.float32).tolist() == [1, np.float32(2) / np.float32(7), 0, 0]
    assert encoded[16:].tolist() == [0x97, 0x01, *[0] * 14, 0x09]
    values[32] = 7 * (1 + 2**-20)
    encoded = quantise("float32", 4, 32, values.view(np.uint8), 0, "bfloat16")
    assert encoded[:4].view(np.uint16).tolist() == [0x3F80, 0x3F81]  # 1, and 1 + 2^-7 above
    assert encoded[4:].tolist() == [*[0] * 12, 0x97, 0x01, *[0] * 14, 0x07]


def test_ties_go_to_the_even_integer() -> None:
    values = np.zeros(32, np.float32)
    values[:6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    encoded = quantise("float32", 8, 32, values.view(np.uint8))
    assert encoded[16:22].view(np.int8).tolist() == [127, 0, 2, 2, 0, -2]


def test_impossible_calls_are_rejected() -> None:
    four = np.zeros(4, np.float32)
    float32, good = DTYPE["float32"], _core.Quantisation(8, 32)
    halves = _core.Quantisation(8, 32, DTYPE["float16"])
    room = np.zeros(64, np.uint8)
    cases: list[tuple[str, tuple[object, ...]]] = [
        ("got float64; cast", (DTYPE["float64"], good, room[:20], four)),
        ("got int8; cast", (DTYPE["int8"], good, room[:20], four)),
        ("8 or 4 bits; got 2", (float32, _core.Quantisation(2, 32), room[:20], four)),
        ("2048 elements; got 16", (float32, _core.Quantisation(8, 16), room[:20], four)),
        ("2048 elements; got 48", (float32, _core.Quantisation(8, 48), room[:20], four)),
        ("2048 elements; got 4096", (float32, _core.Quantisation(8, 4096), room[:20], four)),
        ("bfloat16; got float16", (float32, halves, room[:20], four)),
        ("encoded: expected 20 bytes; got 21", (float32, good, room[:21], four)),
        ("a multiple of 4 bytes", (float32, good, room[:20], four.view(np.uint8)[:15])),
        ("an overlap", (float32, good, room[:20], room[16:32])),
    ]
    for message, arguments in cases:
        with pytest.raises(_core.InvalidArgumentError, match=re.escape(message)):
            _core.quantise(*arguments)
    more: list[tuple[str, tuple[object, ...]]] = [
        ("at least one buffer", (float32, good, four, [])),
        ("source 0: expected 20 bytes; got 19", (float32, good, four, [room[:19]])),
        ("first: expected 16 bytes; got 4", (float32, good, four, [room[:20]], four[:1])),
        ("an overlap", (float32, good, room[:16], [room[8:28]])),
    ]
    for message, arguments in more:
        with pytest.raises(_core.InvalidArgumentError, match=re.escape(message)):
            _core.dequantise(*arguments)


@pytest.mark.slow
@instruction_sets.others
def test_every_instruction_set_gives_the_same_bits(name: str) -> None:
    """All tests above are exact. Passing them on each instruction set proves equal bits."""
    instruction_sets.run_tests(name, __file__)


def test_conversion_kernels_share_no_inline_function() -> None:
    """They are compiled for several processors: see the first lines of reduction_kernels.inc."""
    device = Path(__file__).parents[2] / "csrc" / "device"
    includes: set[str] = set()
    for path in [*device.glob("conversion_*"), *device.glob("kernels/*.cuh")]:
        includes |= set(re.findall(r"#include [<\"](.*)[>\"]", path.read_text()))
    own = {"conversion_kernels.h", "conversion_kernels.inc", "kernels/numbers.cuh"}
    system = {"cstddef", "cstdint", "immintrin.h", "arm_neon.h"}
    assert includes == system | {"device/cast.h", "base/elements.inc"} | {
        f"device/{name}" for name in own
    }
