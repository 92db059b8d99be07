"""Random inputs that every rank can make for every other, and what must come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import torch
import torch.distributed as dist

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
ARITHMETIC = ("SUM", "PRODUCT", "MIN", "MAX")
BITWISE = ("BAND", "BOR", "BXOR")


Op = dist.ReduceOp.RedOpType


def ops(dtype: torch.dtype) -> tuple[str, ...]:
    return ARITHMETIC if dtype in FLOATS else ARITHMETIC + BITWISE


def operator(op: str) -> Op:
    return getattr(dist.ReduceOp, op)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def generator(*key: object) -> torch.Generator:
    """The same on every rank and in every run for the same key."""
    return torch.Generator().manual_seed(crc32(repr(key).encode()))


def values(dtype: torch.dtype, op: str | None, count: int, *key: object) -> torch.Tensor:
    """Integers over their whole range (sums wrap); floats such that no product overflows."""
    random = generator(*key)
    if dtype in FLOATS:
        if op == "PRODUCT":
            return (torch.rand(count, generator=random) + 0.5).to(dtype)
        return torch.randn(count, generator=random).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=random).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), generator=random, dtype=torch.uint8).view(dtype)


@dataclass
class Expected:
    """Values in float64 with how far each may be off, or exact ones (bound None)."""

    values: torch.Tensor
    bound: torch.Tensor | None = None

    def narrow(self, start: int, count: int) -> Expected:
        bound = None if self.bound is None else self.bound.narrow(0, start, count)
        return Expected(self.values.narrow(0, start, count), bound)

    def difference(self, got: torch.Tensor, slack: float = 1) -> str:
        """Says where `got` is wrong; empty if it is right."""
        if got.numel() != self.values.numel():
            return f"{got.numel()} elements, expected {self.values.numel()}"
        if self.bound is None:
            wrong = got != self.values
        else:
            wrong = ~((got.double() - self.values).abs() <= slack * self.bound)
        if not wrong.any():
            return ""
        at = int(wrong.nonzero()[0])
        return (
            f"{int(wrong.sum())} of {got.numel()} wrong, first [{at}]: got {got[at].item()}, "
            f"expected {self.values[at].item()}"
        )


_LOGIC = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}
_FUNCTIONS = {
    "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip


def reduced(inputs: Sequence[torch.Tensor], op: str) -> Expected:
    """Element-wise over the ranks. Integers and every min and max are exact; n roundings, each to
    nearest, of a float sum may add up to n eps times the sum of magnitudes."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        op = _LOGIC.get(op, op)
    inexact = dtype in FLOATS and op in ("SUM", "PRODUCT")
    terms = [one.double() for one in inputs] if inexact else list(inputs)
    total = terms[0].clone()
    for term in terms[1:]:
        total = _FUNCTIONS[op](total, term)
    if not inexact:
        return Expected(total)
    magnitude = total.abs() if op == "PRODUCT" else torch.stack(terms).abs().sum(0)
    finfo = torch.finfo(dtype)
    return Expected(
        total, len(inputs) * (finfo.eps * magnitude + finfo.smallest_normal * finfo.eps)
    )
