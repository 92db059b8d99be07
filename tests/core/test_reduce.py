"""The CPU reduction kernels against NumPy and torch, on every instruction set of this processor.

The expected values of the floating-point operations come from torch, one operation per source in
float32 (float64 for float64), rounded once to the dtype.
"""

import functools
import re
from collections.abc import Callable
from pathlib import Path

import instruction_sets
import numpy as np
import pytest
import torch
from float_oracle import decode, encode

from hetcomm import _core

OPS = list(_core.ReduceOp.__members__.values())
SCALED = ("average", "premul_sum")
FACTOR = 0.3  # not exact in binary: each format rounds it
ARITHMETIC = [op for op in OPS if op.name in ("sum", "product", "min", "max")]
FLOATS = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
REDUCIBLE = [
    (name, op)
    for name, dtype in _core.Dtype.__members__.items()
    for op in OPS
    if _core.reducible(dtype, op)
]
SIZES = [0, 1, 7, 31, 33, 1000, 4099]
COUNTS = [1, 2, 3, 4, 5]
# Floating dtypes that only float_oracle can compute.
UNKNOWN_TO_TORCH = {
    name for name, dtype in _core.Dtype.__members__.items() if dtype.floating and not dtype.torch
}
TORCH = {name: getattr(torch, name) for name in [*FLOATS, *INTEGERS]}
# torch before 2.12 makes NaN of what is too large (pytorch/pytorch#178817).
TORCH_SATURATES = not torch.tensor(1e9).to(torch.float8_e4m3fn).float().isnan()

PAIRWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
UNSIGNED = {  # torch lacks their arithmetic
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
BOOLEAN = {
    "sum": np.logical_or,
    "max": np.logical_or,
    "bor": np.logical_or,
    "product": np.logical_and,
    "min": np.logical_and,
    "band": np.logical_and,
    "bxor": np.logical_xor,
}


def specials(dtype: torch.dtype) -> torch.Tensor:
    """The values at which conversions and comparisons may go wrong, as a tensor of `dtype`."""
    info = torch.finfo(dtype)
    values = [0.0, 1.0, 1 + info.eps, 1 + 3 * info.eps, info.max, info.tiny, info.tiny / 2]
    values += [info.smallest_normal * info.eps, 2048.0, 2049.0, 256.0, 257.0, 65504.0, 16.0, 0.5]
    values += [info.max * info.eps / 4, float("inf"), float("nan")]
    return rounded(torch.tensor([sign * value for value in values for sign in (1, -1)]), dtype)


def to_bytes(values: torch.Tensor) -> np.ndarray:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(integers[values.element_size()]).numpy().view(np.uint8)


def from_bytes(dtype: str, source: np.ndarray) -> torch.Tensor:
    size = _core.Dtype.__members__[dtype].size
    return torch.from_numpy(source.copy().view(f"i{size}")).view(TORCH[dtype])


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """By torch. A number too large for `float8_e4m3fn` becomes its greatest one."""
    if dtype == torch.float8_e4m3fn and not TORCH_SATURATES:
        most = torch.finfo(dtype).max
        values = values.clamp(-most, most)  # keeps NaN
    return values.to(dtype)


def random_bits(dtype: str, count: int, seed: int) -> np.ndarray:
    """Random bytes of `count` elements. A floating dtype gets every kind of value, NaN included."""
    generator = np.random.default_rng(seed)
    size = _core.Dtype.__members__[dtype].size
    bits = generator.integers(0, 256, count * size, dtype=np.uint8)
    if dtype == "boolean":
        bits[generator.random(count) < 0.5] = 0
    if dtype in FLOATS:
        moderate = torch.from_numpy(generator.normal(size=count)).to(TORCH[dtype])
        keep = np.repeat(generator.random(count) < 0.7, size)
        bits = np.where(keep, to_bytes(moderate), bits)
    return bits


def expected(dtype: str, op: _core.ReduceOp, sources: list[np.ndarray]) -> np.ndarray:
    """The result of the oracle as bytes, every NaN as the quiet one."""
    if dtype == "boolean":
        result = sources[0] != 0
        for source in sources[1:]:
            result = BOOLEAN[op.name](result, source != 0)
        return result.astype(np.uint8)
    if dtype in ("uint16", "uint32", "uint64"):
        values = [source.view(dtype) for source in sources]
        return functools.reduce(UNSIGNED[op.name], values).view(np.uint8)
    unknown = dtype in UNKNOWN_TO_TORCH
    if unknown:
        decoded = [decode(dtype, source).astype(np.float32) for source in sources]
        tensors = [torch.from_numpy(values) for values in decoded]
    else:
        tensors = [from_bytes(dtype, source) for source in sources]
    if dtype in NARROW:
        tensors = [tensor.float() for tensor in tensors]
    partial = tensors[0]
    for tensor in tensors[1:]:
        following = PAIRWISE["sum" if op.name in SCALED else op.name](partial, tensor)
        if op.name in ("min", "max"):  # torch does not specify the sign of a zero
            following = torch.where(partial == tensor, partial, following)
        partial = following
    if op.name == "average":
        partial = partial / torch.full_like(partial, len(sources))
    elif op.name == "premul_sum":
        if unknown:
            factor = torch.from_numpy(decode(dtype, encode(dtype, np.array([FACTOR]))))
        else:
            factor = torch.tensor(FACTOR, dtype=torch.float64).to(TORCH[dtype])
        partial = partial * factor.to(partial.dtype)
    if unknown:
        return encode(dtype, partial.double().numpy())
    if dtype in FLOATS:
        quiet = torch.tensor(float("nan"), dtype=partial.dtype)
        partial = rounded(torch.where(partial.isnan(), quiet, partial), TORCH[dtype])
        quiet_bits = {
            "float32": 0x7FC00000, "float16": 0x7E00, "bfloat16": 0x7FC0,
            "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E,
        }  # fmt: skip
        if dtype in quiet_bits:
            integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[FLOATS[dtype]]
            partial.view(integer)[partial.double().isnan()] = quiet_bits[dtype]
    return to_bytes(partial)


def at_offset(source: np.ndarray, offset: int) -> np.ndarray:
    """The same bytes, `offset` bytes from a 64-byte boundary."""
    room = np.empty(source.size + 128 + offset, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    room[begin : begin + source.size] = source
    return room[begin : begin + source.size]


def run(dtype: str, op: _core.ReduceOp, target: np.ndarray, sources: list[np.ndarray]) -> None:
    factor = FACTOR if op.name == "premul_sum" else 1
    _core.reduce(_core.Dtype.__members__[dtype], op, target, sources, factor)


@pytest.mark.parametrize(("dtype", "op"), REDUCIBLE, ids=lambda value: str(value))
def test_reductions_at_any_alignment_match_the_oracle(dtype: str, op: _core.ReduceOp) -> None:
    for count in COUNTS:
        for index, size in enumerate(SIZES):
            sources = [random_bits(dtype, size, 100 * index + s) for s in range(count)]
            want = expected(dtype, op, sources)
            for offset in (0, 1, 2, 5):
                placed = [at_offset(source, offset + s) for s, source in enumerate(sources)]
                target = at_offset(np.full(want.size, 0xA5, np.uint8), 3 * offset)
                run(dtype, op, target, placed)
                np.testing.assert_array_equal(target, want, f"{count} x {size} at {offset}")
                for source, placed_source in zip(sources, placed, strict=True):
                    np.testing.assert_array_equal(placed_source, source)


@pytest.mark.parametrize(("dtype", "op"), REDUCIBLE, ids=lambda value: str(value))
def test_target_may_be_any_one_source(dtype: str, op: _core.ReduceOp) -> None:
    for count in COUNTS:
        sources = [random_bits(dtype, 1517, s) for s in range(count)]
        want = expected(dtype, op, sources)
        for which in range(count):
            placed = [source.copy() for source in sources]
            run(dtype, op, placed[which], placed)
            np.testing.assert_array_equal(placed[which], want, f"target is source {which}")


def test_writes_nothing_outside_the_target() -> None:
    for dtype, op in REDUCIBLE:
        for size in (1, 7, 31, 33):
            source = random_bits(dtype, size, 1)
            room = np.full(source.size + 256, 0x5A, np.uint8)
            run(dtype, op, room[128 : 128 + source.size], [source, source])
            assert (room[:128] == 0x5A).all() and (room[128 + source.size :] == 0x5A).all()


@pytest.mark.parametrize("op", ARITHMETIC, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_pair_of_special_values_matches_the_oracle(dtype: str, op: _core.ReduceOp) -> None:
    values = specials(TORCH[dtype])
    left = to_bytes(values.repeat_interleave(len(values)))
    right = to_bytes(values.repeat(len(values)))
    for sources in ([left, right], [right, left, right], [left, right, right, left, left]):
        target = np.empty_like(left)
        run(dtype, op, target, sources)
        np.testing.assert_array_equal(target, expected(dtype, op, sources))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_floats_match_torch(dtype: str) -> None:
    """Every value; every sum, product and quotient of two values; rounding of many float32."""
    every = np.arange(256, dtype=np.uint8)
    left, right = np.repeat(every, 256), np.tile(every, 256)
    for op in OPS:
        for sources in (
            ([every], [left, right]) if _core.reducible(_core.Dtype.__members__[dtype], op) else []
        ):
            target = np.empty_like(sources[0])
            run(dtype, op, target, sources)
            np.testing.assert_array_equal(target, expected(dtype, op, sources))
    generator = np.random.default_rng(5)
    bits = generator.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    near = generator.normal(size=200_000).astype(np.float32) * np.float32(2) ** generator.integers(
        -20, 20, 200_000
    ).astype(np.float32)
    for values in (bits, near):
        wanted = rounded(torch.from_numpy(values), TORCH[dtype])
        got = np.empty(values.size, np.uint8)
        dtypes = _core.Dtype.__members__
        _core.cast(dtypes[dtype], got, dtypes["float32"], values)
        mine = from_bytes(dtype, got)
        nan = wanted.float().isnan()
        assert torch.equal(nan, mine.float().isnan())
        assert torch.equal(wanted.view(torch.uint8)[~nan], mine.view(torch.uint8)[~nan])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_value_survives(dtype: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    target = np.empty_like(every)
    run(dtype, _core.ReduceOp.sum, target, [every])
    np.testing.assert_array_equal(target, expected(dtype, _core.ReduceOp.sum, [every]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounds_every_product_of_16_bit_values_once(dtype: str) -> None:
    """Every float16 or bfloat16 times a few factors: subnormal results, ties and overflow."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    for factor in (0.5, 0.75, 2.0**-14, 3 * 2.0**-11, 1.0009765625, 1.0078125, 5.0, 1024.0):
        other = to_bytes(torch.full((1 << 16,), factor).to(TORCH[dtype]))
        for op in (_core.ReduceOp.product, _core.ReduceOp.sum):
            target = np.empty_like(every)
            run(dtype, op, target, [every, other])
            np.testing.assert_array_equal(target, expected(dtype, op, [every, other]), str(factor))


def test_sixteen_bit_sums_are_rounded_once() -> None:
    """2048 + 1 + 1 is 2048 when rounded at each step, 2050 when rounded once."""
    sources = [np.full(21, value, np.float16) for value in (2048, 1, 1)]
    target = np.empty(21, np.float16)
    run("float16", _core.ReduceOp.sum, target, sources)
    assert (target == 2050).all()


def test_an_average_is_rounded_once() -> None:
    """The sum of two float16 overflows, but their average does not."""
    sources = [np.full(21, 60000, np.float16)] * 2
    target = np.empty(21, np.float16)
    run("float16", _core.ReduceOp.average, target, sources)
    assert (target == 60000).all()


def test_many_sources_of_booleans_do_not_wrap() -> None:
    target = np.zeros(40, np.bool_)
    run("boolean", _core.ReduceOp.sum, target, [np.ones(40, np.bool_)] * 256)
    assert target.view(np.uint8).tolist() == [1] * 40


def test_impossible_reductions_are_rejected() -> None:
    four = np.zeros(4, np.float32)
    both = np.zeros(8, np.float32)
    float32, add = _core.Dtype.float32, _core.ReduceOp.sum
    locked = np.zeros(4, np.float32)
    locked.flags.writeable = False
    cases: list[tuple[str, tuple[object, ...]]] = [
        ("band of float32", (float32, _core.ReduceOp.band, four, [four])),
        ("average of int32", (_core.Dtype.int32, _core.ReduceOp.average, four, [four])),
        ("premul_sum of uint8", (_core.Dtype.uint8, _core.ReduceOp.premul_sum, four, [four])),
        ("sum of bytes4", (_core.Dtype.bytes4, add, four, [four])),
        ("at least one buffer", (float32, add, four, [])),
        (
            "source 1: expected 16 bytes; got 12",
            (float32, add, four, [four, four[:3]]),
        ),
        ("a multiple of 4 bytes; got 3", (float32, add, bytearray(3), [bytes(3)])),
        ("target itself or memory apart", (float32, add, both[:4], [both[2:6]])),
        ("contiguous", (float32, add, four, [both[::2]])),
        ("contiguous writable", (float32, add, locked, [four])),
        ("buffer", (float32, add, four, [3])),
    ]
    for message, arguments in cases:
        with pytest.raises(_core.InvalidArgumentError, match=re.escape(message)):
            _core.reduce(*arguments)


def test_an_unknown_instruction_set_is_an_error() -> None:
    told = instruction_sets.ask("avx3")
    assert told.returncode != 0
    assert "HETCOMM_ISA: expected an instruction set of this processor" in told.stderr


@pytest.mark.slow
@instruction_sets.others
def test_every_instruction_set_gives_the_same_bits(name: str) -> None:
    """All tests above are exact. Passing them on each instruction set proves equal bits."""
    instruction_sets.run_tests(name, __file__)


def test_reduction_kernels_share_no_inline_function() -> None:
    """They are compiled for several processors: see the first lines of reduction_kernels.inc."""
    device = Path(__file__).parents[2] / "csrc" / "device"
    includes: set[str] = set()
    for path in device.glob("reduction_*"):
        includes |= set(re.findall(r"#include [<\"](.*)[>\"]", path.read_text()))
    plain = {
        "cstddef",
        "cstdint",
        "type_traits",
        "immintrin.h",
        "arm_neon.h",
        "base/dtype.h",
        "base/elements.inc",
    }
    own = {"reduction_kernels.h", "reduction_kernels.inc", "reduction_format.inc"}
    own |= {"kernels/numbers.cuh"}
    assert includes == plain | {f"device/{name}" for name in own}
