"""The lossy codecs in float64 NumPy, from docs/codecs.md and the comments at the layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import float_oracle as oracle
import numpy as np
from float_oracle import single
from numpy.typing import NDArray

BLOCK = 2048
Values = NDArray[np.float64]
Bytes = NDArray[np.uint8]


class Encoded(NamedTuple):
    """A block of elements: its bytes, what they decode to, and the most that may be lost."""

    data: Bytes
    decoded: Values
    bound: Values


def cast(dtype: str, relative: float, absolute: float, largest: float) -> Callable[..., Encoded]:
    def encode(values: Values, _: str) -> Encoded:
        data = oracle.encode(dtype, values)
        bound = np.maximum(np.abs(values) * relative, absolute)
        bound[np.abs(values) > largest] = np.inf
        return Encoded(data, oracle.decode(dtype, data), bound)

    return encode


def largest_of_groups(values: Values, group: int) -> Values:
    """The largest magnitude of each element's group; NaN where one is not finite."""
    padded = np.append(values, np.zeros(-values.size % group)).reshape(-1, group)
    with np.errstate(invalid="ignore"):
        largest = np.abs(padded).max(axis=1)
    return np.where(np.isfinite(largest), largest, np.nan)


def each(of_groups: Values, group: int, count: int) -> Values:
    return of_groups.repeat(group)[:count]


def grouping(parameter: str) -> tuple[int, str]:
    """The elements with one scale, and the scale's type: of "", "128", "bf16" or "128:bf16"."""
    texts = parameter.split(":")
    groups = [int(text) for text in texts if text.isdecimal()]
    return (groups or [256])[0], "bfloat16" if "bf16" in texts else "float32"


def quantised(bits: int) -> Callable[..., Encoded]:
    def encode(values: Values, parameter: str) -> Encoded:
        group, scale_type = grouping(parameter)
        raw = oracle.encode("float32", values)
        scales, codes = oracle.quantise("float32", bits, group, raw, scale_type)
        decoded = single(codes * each(scales, group, codes.size))
        largest = each(largest_of_groups(values, group), group, values.size)
        most = {8: (254, 252), 4: (14, 13.89)}[bits][scale_type == "bfloat16"]
        bound = np.maximum(largest / most * (1 + 2.0**-16), 2.0**-125)
        return Encoded(oracle.pack(bits, scales, codes, scale_type), decoded, bound)

    return encode


def scaled(dtype: str, most: int, relative: float, absolute: float) -> Callable[..., Encoded]:
    def encode(values: Values, parameter: str) -> Encoded:
        group, scale_type = grouping(parameter)
        largest = largest_of_groups(values, group)
        scales = oracle.rounded_up(scale_type, np.maximum(single(largest / most), 2.0**-100))
        scale = each(scales, group, values.size)
        with np.errstate(invalid="ignore"):
            codes = oracle.encode(dtype, single(values / scale))
        head = oracle.encode(scale_type, scales)
        padding = np.zeros(-head.size % 16, np.uint8)
        decoded = single(oracle.decode(dtype, codes) * scale)
        of_group = np.maximum(each(largest, group, values.size) * absolute, 2.0**-110)
        bound = np.maximum(np.abs(values) * relative, of_group)
        return Encoded(np.concatenate([head, padding, codes]), decoded, bound)

    return encode


def sparse(values: Values, parameter: str) -> Encoded:
    kept = math.ceil(float(parameter or "0.01") * values.size)
    magnitudes = np.where(np.isnan(values), np.inf, np.abs(values))
    order = np.lexsort((-np.isnan(values).astype(int), -magnitudes))  # stable: the earlier first
    chosen = np.zeros(values.size, bool)
    chosen[order[:kept]] = True
    bits = np.packbits(chosen, bitorder="little")
    bits = np.append(bits, np.zeros(-bits.size % 8, np.uint8))
    if 2 * kept < bits.size:
        bits = np.flatnonzero(chosen).astype(np.uint16).view(np.uint8)
    bound = np.where(chosen, 0, magnitudes[chosen].min())
    data = np.concatenate([bits, oracle.encode("float32", values[chosen])])
    return Encoded(data, np.where(chosen, values, 0.0), bound)


# Every lossy codec, without its parameter.
CODECS: dict[str, Callable[[Values, str], Encoded]] = {
    "bf16": cast("bfloat16", 1 / 256, 2.0**-134, 3.389e38),
    "fp16": cast("float16", 1 / 2048, 2.0**-25, 65504),
    "fp8_e4m3": scaled("float8_e4m3fn", 448, 1 / 16, 1 / 450_000),
    "fp8_e5m2": scaled("float8_e5m2", 57344, 1 / 8, 1 / 7.4e9),
    "int8": quantised(8),
    "int4": quantised(4),
    "topk": sparse,
}


def encode(codec: str, values: Values) -> Encoded:
    """Of float32 numbers."""
    name, _, parameter = codec.partition(":")
    blocks = [
        CODECS[name](values[begin : begin + BLOCK], parameter)
        for begin in range(0, values.size, BLOCK)
    ]
    nothing = np.zeros(0)
    return Encoded(
        np.concatenate([block.data for block in blocks] or [np.zeros(0, np.uint8)]),
        np.concatenate([nothing, *(block.decoded for block in blocks)]),
        np.concatenate([nothing, *(block.bound for block in blocks)]),
    )


def add(plain: Values | None, parts: list[Values]) -> Values:
    """The float32 sum in order."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = plain
        for part in parts:
            total = part if total is None else single(total + part)
    assert total is not None
    return total


def lost(values: Values, decoded: Values) -> Values:
    """The new residual."""
    with np.errstate(invalid="ignore"):
        difference = single(values - decoded)
    return np.where(np.isfinite(difference), difference, 0.0)
