"""Random elements of every dtype, and their reductions.

Elements of dtypes that NumPy lacks are kept as bits, in unsigned integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetcomm import _core

Array = Any  # of NumPy
LARGEST = 1.5  # of all random floats
CHUNK = 1 << 16  # elements of one generator; so any part of an input can be made alone


@dataclass(frozen=True)
class Element:
    """A dtype. kept: its NumPy dtype. epsilon: from 1 to the next number, 0 for integers. least:
    below it, rounding may change a number by more than epsilon of it."""

    kept: Any
    epsilon: float = 0.0
    least: float = 0.0
    decode: Callable[[Array], Array] | None = None  # from bits to float64

    @property
    def size(self) -> int:
        return int(np.dtype(self.kept).itemsize)

    @property
    def floating(self) -> bool:
        return self.epsilon > 0

    def numbers(self, kept: Array) -> Array:
        """The elements in the dtype of their reductions."""
        if self.decode is not None:
            return self.decode(kept)
        return kept.astype(np.float64) if self.floating else kept


def _decode_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _small_floats(mantissa: int, bias: int) -> Array:
    """All numbers of an 8-bit float, by their bits; infinities and NaNs as ordinary numbers."""
    codes = np.arange(256)
    exponent, fraction = (codes & 127) >> mantissa, codes & ((1 << mantissa) - 1)
    normal = (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias)
    subnormal = fraction / (1 << mantissa) * 2.0 ** (1 - bias)
    return np.where(exponent > 0, normal, subnormal) * np.where(codes < 128, 1, -1)


_E4M3, _E5M2 = _small_floats(3, 7), _small_floats(2, 15)

ELEMENTS = {
    "float32": Element(np.float32, 2.0**-23, 2.0**-126),
    "float64": Element(np.float64, 2.0**-52, 2.0**-1022),
    "float16": Element(np.float16, 2.0**-10, 2.0**-24),
    "bfloat16": Element(np.uint16, 2.0**-7, 2.0**-126, _decode_bfloat16),
    "float8_e4m3fn": Element(np.uint8, 2.0**-3, 2.0**-9, lambda bits: _E4M3[bits]),
    "float8_e5m2": Element(np.uint8, 2.0**-2, 2.0**-16, lambda bits: _E5M2[bits]),
    **{
        f"{sign}int{bits}": Element(np.dtype(f"{sign}int{bits}"))
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


@dataclass(frozen=True)
class Op:
    """A reduction. exact: never rounds."""

    combine: Any  # of two arrays of numbers
    exact: bool = False
    integers: bool = True
    floats: bool = True

    def check(self, dtype: str) -> None:
        """Raises InvalidArgumentError if the reduction lacks the dtype."""
        floating = ELEMENTS[dtype].floating
        if not (self.floats if floating else self.integers):
            kinds = "floating dtypes" if self.floats else "integers"
            name = next(name for name, op in OPS.items() if op is self)
            raise _core.InvalidArgumentError(f"--op: {name} is for {kinds}, got {dtype}")


OPS = {
    "sum": Op(np.add),
    "product": Op(np.multiply),
    "min": Op(np.minimum, exact=True),
    "max": Op(np.maximum, exact=True),
    "avg": Op(np.add, integers=False),
    "band": Op(np.bitwise_and, exact=True, floats=False),
    "bor": Op(np.bitwise_or, exact=True, floats=False),
    "bxor": Op(np.bitwise_xor, exact=True, floats=False),
}


def elements_of(dtype: str, seed: int, rank: int, start: int, count: int) -> Array:
    """Elements [start, start + count) of a rank's random input. Floats lie in [0.5, 1.5): so no
    reduction is near 0, and a missing contribution shows."""
    first, last = start // CHUNK, -(-(start + count) // CHUNK)
    chunks = [_chunk(dtype, seed, rank, index) for index in range(first, last)]
    joined = np.concatenate(chunks) if len(chunks) != 1 else chunks[0]
    return joined[start - first * CHUNK :][:count]


def _chunk(dtype: str, seed: int, rank: int, index: int) -> Array:
    generator = np.random.Generator(np.random.SFC64([seed, rank, index]))
    element = ELEMENTS[dtype]
    if not element.floating:
        return np.frombuffer(generator.bytes(CHUNK * element.size), element.kept)
    if element.size == 1:
        numbers = element.numbers(np.arange(256, dtype=np.uint8))
        codes = np.flatnonzero((numbers >= 0.5) & (numbers < 1.5)).astype(np.uint8)
        return codes[generator.integers(len(codes), size=CHUNK)]
    wide = np.float64 if element.kept is np.float64 else np.float32
    numbers = generator.random(CHUNK, wide) + wide(0.5)
    if element.decode is not None:  # bfloat16: truncated
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(element.kept, copy=False)


def cast(dtype: str, numbers: Array) -> Array:
    """Numbers rounded to a floating dtype, as they are kept."""
    element = ELEMENTS[dtype]
    if element.decode is None:
        return numbers.astype(element.kept)
    import torch  # rounds to dtypes that NumPy lacks

    rounded = torch.from_numpy(numbers).to(getattr(torch, dtype))
    return rounded.view(torch.uint8).numpy().view(element.kept)
