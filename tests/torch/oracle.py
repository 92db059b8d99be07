"""Random inputs that every rank can compute for every other rank, and the expected results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
ONLY_MOVED = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
EVERY_DTYPE = (*DTYPES, *EIGHT_BITS, *UNSIGNED, *COMPLEX, *ONLY_MOVED)
ARITHMETIC = ("SUM", "PRODUCT", "MIN", "MAX")
BITWISE = ("BAND", "BOR", "BXOR")
LINEAR = ("SUM", "AVG", "PREMUL_SUM")
FACTOR = -0.375  # of PREMUL_SUM; exact in every dtype


Op = Any  # dist.ReduceOp, or one of its kinds


def ops(dtype: torch.dtype) -> tuple[str, ...]:
    """The legal ops of a dtype. test_operations.py has AVG and PREMUL_SUM of real floats."""
    if dtype in ONLY_MOVED:
        return ()
    if dtype.is_complex:
        return LINEAR
    return ARITHMETIC if dtype.is_floating_point else ARITHMETIC + BITWISE


def operator(op: str) -> Op:
    if op == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(FACTOR)
    return getattr(dist.ReduceOp, op)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def generator(*key: object) -> torch.Generator:
    """A generator that is the same on every rank and in every run for the same key."""
    return torch.Generator().manual_seed(crc32(repr(key).encode()))


def values(dtype: torch.dtype, op: str | None, count: int, *key: object) -> torch.Tensor:
    """Integers over their whole range (sums wrap), floats such that no product overflows, or random
    bytes of a dtype that is only moved."""
    random = generator(*key)
    if dtype in (*FLOATS, *EIGHT_BITS):
        if op == "PRODUCT":
            return (torch.rand(count, generator=random) + 0.5).to(dtype)
        return torch.randn(count, generator=random).to(dtype)
    if dtype.is_complex and op is not None:
        return torch.randn(count, generator=random, dtype=torch.complex64).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=random).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), generator=random, dtype=torch.uint8).view(dtype)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    packed = tensor.clone(memory_format=torch.contiguous_format)  # of one element: any stride
    return packed.view(torch.uint8).view(tensor.numel(), tensor.element_size())


@dataclass
class Expected:
    """Values in float64 or complex128 with a bound on the error of each, or exact ones (bound
    None)."""

    values: torch.Tensor
    bound: torch.Tensor | None = None

    def narrow(self, start: int, count: int) -> Expected:
        bound = None if self.bound is None else self.bound.narrow(0, start, count)
        return Expected(self.values.narrow(0, start, count), bound)

    def difference(self, got: torch.Tensor, slack: float = 1) -> str:
        """The first difference in words; empty if `got` is right."""
        if got.numel() != self.values.numel():
            return f"{got.numel()} elements, expected {self.values.numel()}"
        if self.bound is None:
            wrong = (_bytes(got) != _bytes(self.values)).any(1)
        else:
            wrong = ~((got.to(self.values.dtype) - self.values).abs() <= slack * self.bound)
        if not wrong.any():
            return ""
        at = int(wrong.nonzero()[0])
        return (
            f"{int(wrong.sum())} of {got.numel()} wrong, first [{at}]: got {got[at].item()}, "
            f"expected {self.values[at].item()}"
        )


_EXACT = {
    "SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip


def reduced(inputs: Sequence[torch.Tensor], op: str) -> Expected:
    """The element-wise reduction over the ranks.

    Integers and every min and max are exact. n roundings of a float sum, each to nearest, may add
    up to n eps times the sum of magnitudes. A scale rounds twice more.
    """
    dtype = inputs[0].dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return Expected(torch.from_numpy(reduce(_EXACT[op], [one.numpy() for one in inputs])))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    terms = torch.stack([one.to(wide) for one in inputs])
    if op in ("MIN", "MAX"):
        total = terms.amin(0) if op == "MIN" else terms.amax(0)
        return Expected(total, torch.zeros_like(total))
    finfo = torch.finfo(dtype)
    tiny = finfo.smallest_normal * finfo.eps
    if op == "PRODUCT":
        total = terms.prod(0)
        return Expected(total, len(inputs) * (finfo.eps * total.abs() + tiny))
    factor = {"SUM": 1, "AVG": 1 / len(inputs), "PREMUL_SUM": FACTOR}[op]
    roundings = len(inputs) + (0 if op == "SUM" else 2)
    bound = roundings * (finfo.eps * terms.abs().sum(0) + tiny)
    return Expected(factor * terms.sum(0), bound * max(abs(factor), 1 / len(inputs)))
