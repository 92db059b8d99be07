"""Inputs of the programs that ranks run, and checks of the results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import hetcomm

DTYPES = [
    "float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
    "uint64", "bool", "complex64", "complex128",
]  # fmt: skip
OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def values(dtype: str, shape: tuple[int, ...], *key: int) -> np.ndarray:
    """Numbers so small that no dtype rounds their sums and products."""
    random = np.random.default_rng(key)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    low = 0 if dtype.startswith("u") else -2
    found = random.integers(low, 3, shape).astype(dtype)
    if dtype.startswith("complex"):
        found += 1j * random.integers(-2, 3, shape)
    return found


def legal(dtype: str, op: str) -> bool:
    if dtype.startswith("complex"):
        return op == "sum"
    return not (dtype.startswith("float") and op.startswith("b"))


def reduced(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(OPERATIONS[op], arrays).astype(arrays[0].dtype)


def same(got: Any, expected: np.ndarray, what: object) -> None:
    np.testing.assert_array_equal(np.asarray(got), expected, err_msg=str(what), strict=True)


def refused(call: Callable[[], object], *words: str) -> None:
    try:
        call()
    except hetcomm.InvalidArgumentError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")
