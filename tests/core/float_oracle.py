"""Formats of floating-point numbers, block quantisation and their arithmetic, in float64 NumPy.

Written from the definitions, not from the code under test. A float32 result of +, * or / of two
float32 numbers is the float64 result rounded: with 53 digits rounding twice does no harm.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetcomm import _core


class Narrow(NamedTuple):
    """IEEE 754 layout. Without infinities only the code of greatest magnitude is a NaN."""

    exponent: int
    fraction: int
    infinities: bool
    storage: type

    @property
    def nan(self) -> int:
        quiet = ((1 << self.exponent) - 1) << self.fraction | 1 << (self.fraction - 1)
        return quiet if self.infinities else (1 << (self.exponent + self.fraction)) - 1

    @property
    def overflow(self) -> int:
        return ((1 << self.exponent) - 1) << self.fraction if self.infinities else self.nan


NARROW = {
    "float16": Narrow(5, 10, True, np.uint16),
    "bfloat16": Narrow(8, 7, True, np.uint16),
}
for _name in _core.Dtype.__members__:  # "float8_e4m3fn": fn is finite, with NaN
    if _parts := re.fullmatch(r"float8_e(\d)m(\d)(fn)?", _name):
        NARROW[_name] = Narrow(int(_parts[1]), int(_parts[2]), _parts[3] is None, np.uint8)
WIDE: dict[str, tuple[Any, Any, int]] = {
    "float32": (np.float32, np.uint32, 0x7FC00000),
    "float64": (np.float64, np.uint64, 0x7FF8 << 48),
}
FORMATS = [*WIDE, *NARROW]
SIZES = {"float32": 4, "float64": 8} | {
    name: np.dtype(form.storage).itemsize for name, form in NARROW.items()
}


@cache
def magnitudes(name: str) -> NDArray[np.float64]:
    """The values of the codes without sign, up to the overflow's, which has the next number."""
    form = NARROW[name]
    codes = np.arange(form.overflow + 1)
    exponents, fractions = codes >> form.fraction, codes & ((1 << form.fraction) - 1)
    bias = (1 << (form.exponent - 1)) - 1
    significands = fractions + np.where(exponents == 0, 0, 1 << form.fraction)
    return np.ldexp(
        significands.astype(np.float64), np.maximum(exponents, 1) - bias - form.fraction
    )


def decode(name: str, raw: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The numbers of encoded bytes."""
    if name in WIDE:
        with np.errstate(invalid="ignore"):
            return raw.view(WIDE[name][0]).astype(np.float64)
    form = NARROW[name]
    codes = raw.view(form.storage).astype(np.int64)
    sign = 1 << (form.exponent + form.fraction)
    unsigned = codes & (sign - 1)
    values = magnitudes(name)[np.minimum(unsigned, form.overflow)].copy()
    if form.infinities:
        values[unsigned == form.overflow] = np.inf
        values[unsigned > form.overflow] = np.nan
    else:
        values[unsigned == form.nan] = np.nan
    return np.where(codes & sign, -values, values)


def encode(name: str, values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Bytes of the nearest numbers, ties to the even code. Every NaN becomes the quiet one."""
    nan = np.isnan(values)
    if name in WIDE:
        floating, integer, quiet = WIDE[name]
        with np.errstate(over="ignore", invalid="ignore"):
            wide = values.astype(floating).view(integer)
        return np.where(nan, integer(quiet), wide).view(np.uint8)
    form = NARROW[name]
    table = magnitudes(name)
    magnitude = np.minimum(np.where(nan, 0, np.abs(values)), table[-1])
    above = np.minimum(np.searchsorted(table, magnitude), form.overflow)
    below = np.maximum(above - 1, 0)
    to_above, to_below = table[above] - magnitude, magnitude - table[below]
    take_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    codes = np.where(take_above, above, below)
    if not form.infinities:  # greater numbers become the greatest one
        codes = np.minimum(codes, form.nan - 1)
    codes = np.where(nan, form.nan, codes)
    signed = np.signbit(values) & (codes != form.nan)
    codes = codes | np.where(signed, 1 << (form.exponent + form.fraction), 0)
    return codes.astype(form.storage).view(np.uint8)


def single(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to float32."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return values.astype(np.float32).astype(np.float64)


def rounded_up(name: str, scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least numbers of a format that are not below the scales. NaN stays."""
    if name == "float32":
        return scales
    table = magnitudes(name)
    above = table[np.searchsorted(table, np.where(np.isnan(scales), 0, scales), side="left")]
    return np.where(np.isnan(scales), scales, above)


def quantise(
    name: str, bits: int, group: int, raw: NDArray[np.uint8], scale_type: str = "float32"
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The scale of each group, and the integer of each element."""
    values = decode(name, raw)
    most = (1 << (bits - 1)) - 1
    scales, codes = [], []
    for begin in range(0, len(values), group):
        part = values[begin : begin + group]
        if not np.isfinite(part).all():
            scales.append(np.float64(np.nan))
            codes.append(np.zeros(len(part), np.int64))
            continue
        scale = max(single(np.abs(part).max(keepdims=True) / most)[0], 2.0**-124)
        scale = rounded_up(scale_type, np.array([scale]))[0]
        scales.append(scale)
        codes.append(np.rint(single(part / scale)).astype(np.int64))
    return np.array(scales, np.float64), np.concatenate([*codes, np.zeros(0, np.int64)])


def pack(
    bits: int, scales: NDArray[np.float64], codes: NDArray[np.int64], scale_type: str = "float32"
) -> NDArray[np.uint8]:
    """The encoded block."""
    head = encode(scale_type, scales)
    head = np.concatenate([head, np.zeros(-len(head) % 16, np.uint8)])
    if bits == 4:
        even = np.concatenate([codes, np.zeros(len(codes) % 2, np.int64)]) & 15
        codes = even[0::2] | even[1::2] << 4
    return np.concatenate([head, (codes & 255).astype(np.uint8)])


def dequantise(
    name: str,
    group: int,
    blocks: list[tuple[NDArray[np.float64], NDArray[np.int64]]],
    first: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    """The sum of the decoded blocks in order (and `first`), in float32, rounded once."""
    partial = None if first is None else decode(name, first)
    with np.errstate(invalid="ignore", over="ignore"):
        for scales, codes in blocks:
            value = single(codes * np.repeat(scales, group)[: len(codes)])
            partial = value if partial is None else single(partial + value)
    assert partial is not None
    return encode(name, partial)


def random_raw(name: str, count: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Bytes of `count` elements: ordinary numbers, and every third with random bits, NaN
    included."""
    spread = generator.normal(size=count) * np.exp2(generator.integers(-12, 12, count))
    bits = generator.integers(0, 256, count * SIZES[name], dtype=np.uint8)
    ordinary = np.repeat(generator.random(count) < 0.67, SIZES[name])
    return np.where(ordinary, encode(name, spread), bits)


def ordinary_raw(name: str, count: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Numbers like gradients: groups of different magnitudes, some zeros, ties of halves."""
    values = (
        generator.normal(size=count)
        * np.exp2(generator.integers(-9, 9, (count + 31) // 32)).repeat(32)[:count]
    )
    values[generator.random(count) < 0.05] = 0
    halves = generator.random(count) < 0.1
    values[halves] = generator.integers(-254, 255, halves.sum()) / 2
    return encode(name, values)


def at_offset(raw: NDArray[np.uint8], offset: int) -> NDArray[np.uint8]:
    """The same bytes, `offset` bytes from a 64-byte boundary."""
    room = np.empty(raw.size + 128 + offset, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    room[begin : begin + raw.size] = raw
    return room[begin : begin + raw.size]
