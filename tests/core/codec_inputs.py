"""The codecs of the tests, their inputs of every class of bits, and how these are encoded."""

from __future__ import annotations

import os

import float_oracle
import numpy as np
import pytest
from codec_oracle import Bytes, Values
from float_oracle import at_offset

from hetcomm import _core

SEED = int(os.environ.get("HETCOMM_TEST_SEED", "72"))
DTYPE = _core.Dtype.__members__
FLOATS = ("float32", "float16", "bfloat16")
LOSSY = [name for name in _core.codecs() if not _core.is_lossless(name)]
OTHER_PARAMETERS = [
    *("int8:32", "int4:2048", "fp8_e4m3:32", "fp8_e5m2:1024", "topk:0.3", "topk:1"),
    *("int8:bf16", "int8:32:bf16", "int4:64:bf16", "int4:2048:bf16"),
    *("fp8_e4m3:bf16", "fp8_e4m3:32:bf16", "fp8_e5m2:128:bf16"),
]
SCALED = ("int8", "int4", "fp8_e4m3", "fp8_e5m2")  # with a scale for each group
LONG = (127, 1000, 2047, 2048, 2049, 4096, 10_000)


def dtypes_of(codec: str) -> list[str]:
    return [dtype for dtype in DTYPE if encodes(codec, dtype)]


def encodes(codec: str, dtype: str) -> bool:
    try:
        return _core.codec_capacity(codec, DTYPE[dtype], 1) > 0
    except _core.InvalidArgumentError:
        return False


CASES = [(codec, dtype) for codec in [*LOSSY, *OTHER_PARAMETERS] for dtype in dtypes_of(codec)]
each_codec = pytest.mark.parametrize("codec", [*LOSSY, *OTHER_PARAMETERS])
each_case = pytest.mark.parametrize(("codec", "dtype"), CASES)


def encode(
    codec: str, dtype: str, raw: Bytes, offset: int = 0, residual: np.ndarray | None = None
) -> Bytes:
    """The encoded bytes; fails if the encoder wrote beyond its memory."""
    length = _core.codec_capacity(codec, DTYPE[dtype], raw.size // DTYPE[dtype].size)
    whole = at_offset(np.full(length + 64, 0xA5, np.uint8), offset)
    source = at_offset(raw, 3 * offset)
    made = _core.codec_encode(codec, DTYPE[dtype], whole[:length], source, residual)
    assert made == length
    assert (whole[length:] == 0xA5).all()
    return whole[:length]


def decode(codec: str, dtype: str, encoded: Bytes, size: int, offset: int = 0) -> Bytes:
    whole = at_offset(np.full(size + 64, 0x5A, np.uint8), offset)
    _core.codec_decode(codec, DTYPE[dtype], whole[:size], at_offset(encoded, offset))
    assert (whole[size:] == 0x5A).all()
    return whole[:size]


def with_exponent(dtype: str, generator: np.random.Generator, count: int, ones: bool) -> Bytes:
    """Random bits with an exponent of only zeros, or only ones."""
    form = float_oracle.NARROW.get(dtype)
    exponent, fraction = (form.exponent, form.fraction) if form else (8, 23)
    word = np.dtype(f"u{DTYPE[dtype].size}")
    bits = generator.integers(0, np.iinfo(word).max, count, word, endpoint=True)
    mask = word.type(((1 << exponent) - 1) << fraction)
    return ((bits | mask) if ones else (bits & ~mask)).view(np.uint8)


def small_ties(generator: np.random.Generator, count: int) -> Values:
    """Numbers next to ties of an integer code whose scale is near its least, 2^-124. The rest of
    such a quotient is a subnormal."""
    most = generator.choice([7, 127])
    greatest = np.float32(most * 2.0**-124 * generator.uniform(1, 2))
    ties = generator.integers(-2, 2, count) + 0.5
    values = (ties * np.float64(greatest / np.float32(most))).astype(np.float32)
    values = (values.view(np.int32) + generator.integers(-2, 3, count, np.int32)).view(np.float32)
    values[::32] = greatest  # in every group
    return values


def kinds(dtype: str, generator: np.random.Generator, count: int) -> dict[str, Bytes]:
    """Data of every class of bits."""
    normal = generator.normal(0, 1e-3, count)
    mixed = normal * np.exp2(generator.integers(-30, 30, count))
    steps = generator.integers(-3, 4, count) / 2  # ties
    rare = np.where(generator.random(count) < 0.002, np.inf, normal)
    values = {"normal": normal, "mixed": mixed, "steps": steps, "rare": rare}
    values |= {"zeros": np.zeros(count), "negative zeros": np.full(count, -0.0)}
    values["small ties"] = small_ties(generator, count)
    return {name: float_oracle.encode(dtype, these) for name, these in values.items()} | {
        "gradients": float_oracle.ordinary_raw(dtype, count, generator),
        "random bits": generator.integers(0, 256, count * DTYPE[dtype].size, np.uint8),
        "subnormals": with_exponent(dtype, generator, count, ones=False),
        "infinities and NaNs": with_exponent(dtype, generator, count, ones=True),
    }


def inputs(dtype: str, generator: np.random.Generator) -> list[tuple[str, Bytes]]:
    """A few kinds of every short length, and every kind of long ones."""
    chosen = []
    for count in (*range(68), *LONG):
        made = kinds(dtype, generator, count)
        names = list(made) if count in LONG else list(generator.choice(list(made), 3))
        chosen += [(f"seed {SEED}: {count} {name}", made[name]) for name in names]
    return chosen


def wide(dtype: str, raw: Bytes) -> Values:
    """The elements as float32 numbers."""
    return float_oracle.decode(dtype, raw)
