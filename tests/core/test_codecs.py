"""The lossy codecs against float64 NumPy, on every instruction set."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import codec_oracle
import float_oracle
import instruction_sets
import numpy as np
import pytest
from codec_inputs import (
    DTYPE,
    FLOATS,
    LOSSY,
    SCALED,
    SEED,
    decode,
    dtypes_of,
    each_case,
    each_codec,
    encode,
    inputs,
    kinds,
    wide,
    with_exponent,
)
from codec_oracle import BLOCK, Bytes
from float_oracle import at_offset, single

from hetcomm import _core

GREATEST = {"float32": 3.4028234e38, "float16": 65504.0, "bfloat16": 3.3895313e38}
FUZZED = int(os.environ.get("HETCOMM_TEST_FUZZED", "2000"))  # changed inputs of each codec


def test_every_lossy_codec_has_an_oracle() -> None:
    assert set(LOSSY) == set(codec_oracle.CODECS)


def test_casts_encode_float32_and_the_others_every_float() -> None:
    for codec in LOSSY:
        assert dtypes_of(codec) == (["float32"] if codec in ("bf16", "fp16") else list(FLOATS))


@each_case
def test_encoded_and_decoded_bits_are_those_of_the_oracle(codec: str, dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    for message, raw in inputs(dtype, generator):
        offset = int(generator.integers(0, 6))
        want = codec_oracle.encode(codec, wide(dtype, raw))
        encoded = encode(codec, dtype, raw, offset)
        np.testing.assert_array_equal(encoded, want.data, message)
        back = decode(codec, dtype, encoded, raw.size, offset)
        expected = float_oracle.encode(dtype, want.decoded)
        np.testing.assert_array_equal(back, expected, message)


@each_case
def test_no_finite_element_changes_by_more_than_its_bound(codec: str, dtype: str) -> None:
    """In a group without NaN and infinities. The bounds are those of docs/codecs.md."""
    generator = np.random.default_rng(SEED)
    tested = 0
    for message, raw in inputs(dtype, generator):
        values = wide(dtype, raw)
        bound = codec_oracle.encode(codec, values).bound
        back = wide(dtype, decode(codec, dtype, encode(codec, dtype, raw), raw.size))
        # The decoded element is rounded to the dtype.
        relative, absolute = {"float32": (0.0, 0.0), "float16": (2.0**-11, 2.0**-25)}.get(
            dtype, (2.0**-8, 2.0**-134)
        )
        bounded = np.isfinite(values) & np.isfinite(bound)
        if codec.endswith(":bf16"):  # whose greatest code may decode to more than was encoded
            bounded &= np.abs(values) + bound <= GREATEST[dtype]
        values, back, bound = values[bounded], back[bounded], bound[bounded]
        bound = bound + (np.abs(values) + bound) * relative + absolute
        assert (np.abs(values - back) <= bound).all(), message
        tested += values.size
    assert tested > 30_000


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@each_case
def test_nan_and_infinity_stay_visible(codec: str, dtype: str, bad: float) -> None:
    values = np.ones(2 * BLOCK)
    values[BLOCK + 300] = bad
    raw = float_oracle.encode(dtype, values)
    back = wide(dtype, decode(codec, dtype, encode(codec, dtype, raw), raw.size))
    assert not np.isfinite(back[BLOCK + 300])
    assert np.isfinite(back[:BLOCK]).all()


def test_fp16_overflows_to_infinity_where_bf16_does_not() -> None:
    raw = np.array([65504, 65520, -1e30, 3.4e38], np.float32).view(np.uint8)
    fp16 = decode("fp16", "float32", encode("fp16", "float32", raw), 16).view(np.float32)
    assert fp16.tolist() == [65504, np.inf, -np.inf, np.inf]
    bf16 = decode("bf16", "float32", encode("bf16", "float32", raw), 16).view(np.float32)
    assert np.isfinite(bf16[:3]).all() and bf16[3] == np.inf


def test_topk_keeps_the_earlier_of_equal_magnitudes() -> None:
    values = np.array([1, 2, -2, 2, 0, -3, 2, 2, 1, 1], np.float32)
    for share, kept in [(0.1, [5]), (0.2, [1, 5]), (0.25, [1, 2, 5]), (0.5, [1, 2, 3, 5, 6])]:
        codec = f"topk:{share}"
        encoded = encode(codec, "float32", values.view(np.uint8))
        assert encoded.size == min(8, 2 * len(kept)) + 4 * len(kept)
        assert (
            np.flatnonzero(decode(codec, "float32", encoded, 40).view(np.float32)).tolist() == kept
        )


@each_case
def test_sums_are_in_float32_in_order_and_rounded_once(codec: str, dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    for count in (1, 67, 2047, 5000):
        made = kinds(dtype, generator, count)
        for _ in range(8):
            names = generator.choice(list(made), 4)
            raws = [made[str(name)] for name in names]
            encoded = [encode(codec, dtype, raw) for raw in raws[1:]]
            decoded = [codec_oracle.encode(codec, wide(dtype, raw)).decoded for raw in raws[1:]]
            for used, start in [(1, raws[0]), (3, raws[0]), (2, None)]:
                plain = None if start is None else wide(dtype, start)
                want = float_oracle.encode(dtype, codec_oracle.add(plain, decoded[:used]))
                for offset in (0, 1):
                    target = at_offset(raws[0], offset)
                    parts = [at_offset(part, offset) for part in encoded[:used]]
                    apart = None if start is None else at_offset(start, 2 * offset)
                    message = f"seed {SEED}: {count} {names} {used} at {offset}"
                    _core.codec_sum(codec, DTYPE[dtype], target, apart, parts)
                    np.testing.assert_array_equal(target, want, message)
                    if start is not None:
                        target[:] = start
                        _core.codec_sum(codec, DTYPE[dtype], target, target, parts)
                        np.testing.assert_array_equal(target, want, message)


@each_case
def test_the_residual_has_what_was_lost(codec: str, dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    for count in (0, 1, 67, 2047, 2049, 5000):
        for name, raw in kinds(dtype, generator, count).items():
            room = np.zeros(count + 8, np.float32)
            residual = room[4 : count + 4]
            residual[:] = generator.normal(0, 1e-3, count)
            room[:4] = room[count + 4 :] = 7
            with np.errstate(over="ignore", invalid="ignore"):
                values = single(wide(dtype, raw) + residual.astype(np.float64))
            want = codec_oracle.encode(codec, values)
            encoded = encode(codec, dtype, raw, int(generator.integers(0, 6)), residual)
            message = f"seed {SEED}: {count} {name}"
            np.testing.assert_array_equal(encoded, want.data, message)
            lost = codec_oracle.lost(values, want.decoded).astype(np.float32)
            np.testing.assert_array_equal(residual.view(np.uint32), lost.view(np.uint32), message)
            assert (room[:4] == 7).all() and (room[count + 4 :] == 7).all(), message


@each_case
def test_what_a_residual_holds_back_comes_later(codec: str, dtype: str) -> None:
    """The mean of many decoded steps approaches the elements."""
    steps, count = 1000, 300
    raw = float_oracle.encode(dtype, np.random.default_rng(SEED).normal(0, 1e-3, count))
    values = wide(dtype, raw)
    residual = np.zeros(count, np.float32)
    total = np.zeros(count)
    for _ in range(steps):
        encoded = encode(codec, dtype, raw, residual=residual)
        # Before the rounding to the dtype, which the residual does not know.
        total += decode(codec, "float32", encoded, 4 * count).view(np.float32)
    once = np.linalg.norm(codec_oracle.encode(codec, values).decoded - values)
    assert np.linalg.norm(total / steps - values) <= once / 5
    np.testing.assert_allclose(total + residual, steps * values, rtol=0, atol=1e-5)


@contextmanager
def flushed_subnormals() -> Iterator[None]:
    """This thread takes subnormal numbers for zeros, as after torch.set_flush_denormal()."""
    library = ctypes.CDLL("libm.so.6")
    before, flushed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    library.fegetenv(before)
    library.fegetenv(flushed)
    flushed[7] |= 0x8040  # MXCSR: denormals are zero, flush to zero
    library.fesetenv(flushed)
    try:
        yield
    finally:
        library.fesetenv(before)


@each_case
def test_settings_of_the_thread_change_no_bit(codec: str, dtype: str) -> None:
    """Ranks decode alike, whatever the program has set on the thread that decodes."""
    generator = np.random.default_rng(SEED)
    raw = with_exponent(dtype, generator, 3000, ones=False)
    plain = raw[::-1].copy()
    before = np.full(3000, 2.0**-140, np.float32)

    def results() -> list[Bytes]:
        residual = before.copy()
        total = np.zeros_like(raw)
        encoded = encode(codec, dtype, raw, 0, residual)
        _core.codec_sum(codec, DTYPE[dtype], total, plain, [encoded])
        return [encoded, residual.view(np.uint8), total]

    with flushed_subnormals():
        flushed = results()
    for one, other in zip(results(), flushed, strict=True):
        np.testing.assert_array_equal(one, other, f"seed {SEED}")


@each_codec
def test_other_lengths_are_refused(codec: str) -> None:
    raw = np.random.default_rng(SEED).normal(0, 1, 3000).astype(np.float32).view(np.uint8)
    encoded = encode(codec, "float32", raw)
    for length in (0, 1, encoded.size // 2, encoded.size - 1):
        expected = f"{codec}: expected {encoded.size} bytes of 3000 elements; got {length}"
        with pytest.raises(_core.TransportError, match=re.escape(expected)):
            decode(codec, "float32", encoded[:length], raw.size)
    with pytest.raises(_core.TransportError, match="expected"):
        decode(codec, "float32", np.append(encoded, np.uint8(0)), raw.size)
    with pytest.raises(_core.InvalidArgumentError, match=f"expected {encoded.size} bytes; got"):
        _core.codec_sum(codec, DTYPE["float32"], raw.copy(), None, [encoded[:-1].copy()])


@each_case
def test_changed_data_are_refused_or_decode_to_something(codec: str, dtype: str) -> None:
    """The address sanitizer runs this test as well."""
    generator = np.random.default_rng(SEED)
    refused = 0
    for _ in range(FUZZED // 50):
        count = int(generator.choice([1, 50, 700, BLOCK, 2 * BLOCK + 65]))
        made = kinds(dtype, generator, count)
        raw = made[str(generator.choice(list(made)))]
        original = encode(codec, dtype, raw)
        for _ in range(50):
            encoded = original.copy()
            for _ in range(int(generator.integers(1, 4))):
                encoded[generator.integers(0, encoded.size)] = generator.integers(0, 256)
            if generator.random() < 0.1:
                encoded = generator.integers(0, 256, encoded.size, np.uint8)
            if generator.random() < 0.3:
                encoded = encoded[: generator.integers(0, encoded.size + 1)].copy()
            try:
                decode(codec, dtype, encoded, raw.size)
            except _core.TransportError:
                refused += 1
    assert refused > FUZZED / 10


@pytest.mark.parametrize("dtype", FLOATS)
def test_topk_refuses_places_that_no_encoder_made(dtype: str) -> None:
    raw = np.zeros(100 * DTYPE[dtype].size, np.uint8)
    bitmap = encode("topk:0.3", dtype, raw)
    numbers = encode("topk:0.02", dtype, raw)
    assert bitmap[:4].tolist() == [255, 255, 255, 63]  # the first 30 of zeros
    assert numbers[:4].tolist() == [0, 0, 1, 0]
    for codec, encoded, changes in (
        ("topk:0.3", bitmap, {0: 254}),
        ("topk:0.3", bitmap, {4: 1}),
        ("topk:0.3", bitmap, {0: 254, 12: 1 << 4}),  # element 100
        ("topk:0.02", numbers, {2: 0}),  # twice the same
        ("topk:0.02", numbers, {0: 2}),  # not in order
        ("topk:0.02", numbers, {2: 100}),
        ("topk:0.02", numbers, {3: 255}),
    ):
        changed = encoded.copy()
        for place, value in changes.items():
            changed[place] = value
        with pytest.raises(_core.TransportError, match=f"{codec}: expected what this codec"):
            decode(codec, dtype, changed, raw.size)


def test_the_usual_parameter_may_be_given() -> None:
    raw = np.random.default_rng(SEED).normal(0, 1, 3000).astype(np.float32).view(np.uint8)
    spellings = [("topk:0.01", "topk")]
    for name in SCALED:
        spellings += [(f"{name}:{same}", name) for same in ("256", "fp32", "256:fp32")]
        spellings += [(f"{name}:64:fp32", f"{name}:64"), (f"{name}:256:bf16", f"{name}:bf16")]
    for codec, short in spellings:
        assert _core.Spec(_core.Collective.all_reduce, codec=codec).codec == short
        encoded = encode(codec, "float32", raw)
        np.testing.assert_array_equal(encoded, encode(short, "float32", raw))
        assert _core.codec_error_bound(codec) == _core.codec_error_bound(short)


def test_scales_in_bfloat16_take_half_the_bytes() -> None:
    float32 = DTYPE["float32"]
    for name in SCALED:
        for group in (32, 64, 128, 256):
            wide = _core.codec_capacity(f"{name}:{group}", float32, 10 * BLOCK)
            narrow = _core.codec_capacity(f"{name}:{group}:bf16", float32, 10 * BLOCK)
            assert wide - narrow == 10 * 2 * BLOCK // group


@pytest.mark.parametrize("name", SCALED)
def test_scales_in_bfloat16_are_the_next_above(name: str) -> None:
    """So the largest element of a group keeps its code within the range. Of every exponent."""
    largest = np.ldexp(1 + np.arange(32) / 32 + 1 / 96, np.arange(-149, 128)[:, None]).ravel()
    groups = np.zeros((largest.size, 32), np.float32)
    groups[:, 5] = largest
    raw = groups.view(np.uint8).reshape(-1)
    per_block = BLOCK // 32
    scales = {}
    for scale_type, dtype in (("fp32", "float32"), ("bf16", "bfloat16")):
        size = DTYPE[dtype].size
        encoded = encode(f"{name}:32:{scale_type}", "float32", raw)
        block = _core.codec_capacity(f"{name}:32:{scale_type}", DTYPE["float32"], BLOCK)
        whole = encoded[: encoded.size // block * block].reshape(-1, block)
        head = np.ascontiguousarray(whole[:, : per_block * size]).reshape(-1)
        scales[scale_type] = float_oracle.decode(dtype, head)
    wide, narrow = scales["fp32"], scales["bf16"]
    assert wide.size > 8000
    assert (narrow >= wide).all() and (narrow < wide * (1 + 2.0**-7)).all()
    assert (narrow > wide)[wide > 2.0**-99].mean() > 0.9


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        *[
            (f"{name}:{given}", f'fp32 or bf16, or both, such as "{name}:256:fp32"')
            for name in SCALED
            for given in (
                *("100", "", "16", "4096", "-32", "32x", " 32", "1e2", "99999999999"),
                *("64:", ":bf16", "64:fp16", "fp16", "64:bf16:", "bf16:64", "100:bf16", "bfloat16"),
            )
        ],
        ("bf16:3", 'expected no parameter, "bf16"'),
        ("fp16:", 'expected no parameter, "fp16"'),
        *[
            (f"topk:{share}", 'above 0 and up to 1, such as "topk:0.01"')
            for share in ("2", "0", "", "-0.5", "nan", "inf", "0.5x", " 0.5", "1e-999", "1.01")
        ],
        ("fp8", "expected one of none, auto, lossless, bf16, fp16, fp8_e4m3, fp8_e5m2, int8, int4"),
    ],
)
def test_impossible_parameters_are_rejected(codec: str, expected: str) -> None:
    with pytest.raises(_core.InvalidArgumentError, match=re.escape(expected)) as caught:
        _core.codec_error_bound(codec)
    assert f'"{codec}"' in str(caught.value)


@each_codec
def test_impossible_calls_are_rejected(codec: str) -> None:
    four, room = np.zeros(4, np.float32), np.zeros(64, np.uint8)
    float32 = DTYPE["float32"]
    needed = _core.codec_capacity(codec, float32, 4)
    cases: list[tuple[str, tuple[object, ...]]] = [
        ("got float64; send", (DTYPE["float64"], room[:needed], four)),
        (f"encoded: expected {needed} bytes; got 64", (float32, room, four)),
        ("an overlap", (float32, room[:needed], room[4:20])),
        ("residual: expected 16 bytes; got 12", (float32, room[:needed], four, four[:3].copy())),
        ("an overlap", (float32, room[:needed], four, room[4:20])),
    ]
    for message, arguments in cases:
        with pytest.raises(_core.InvalidArgumentError, match=re.escape(message)):
            _core.codec_encode(codec, *arguments)


@pytest.mark.slow
@instruction_sets.others
def test_every_instruction_set_gives_the_same_bits(name: str) -> None:
    """All tests above are exact, so results that pass them on each instruction set are equal."""
    instruction_sets.run_tests(name, __file__)


def test_block_kernels_share_no_inline_function() -> None:
    """They are compiled for several processors: see the first lines of reduction_kernels.inc."""
    codec = Path(__file__).parents[2] / "csrc" / "codec"
    includes: set[str] = set()
    for path in codec.glob("block_kernels*"):
        includes |= set(re.findall(r"#include [<\"](.*)[>\"]", path.read_text()))
    own = {"codec/block_kernels.h", "codec/block_kernels.inc"}
    shared = {"base/elements.inc", "device/kernels/numbers.cuh"}
    assert includes == {"cstddef", "cstdint"} | own | shared
