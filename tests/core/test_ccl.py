"""The engine over libraries with NCCL's ABI."""

from __future__ import annotations

from hetcomm import _core

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int32", "int64")


def test_what_the_libraries_reduce() -> None:
    expected = {
        (dtype, op) for dtype in FLOATS + INTEGERS for op in ("sum", "product", "min", "max")
    } | {("boolean", op) for op in ("sum", "product", "min", "max", "band", "bor")}
    assert {
        (dtype, op)
        for dtype in _core.Dtype.__members__
        for op in _core.ReduceOp.__members__
        if _core.ccl_reduces(getattr(_core.Dtype, dtype), getattr(_core.ReduceOp, op))
    } == expected
