"""The calls of a library with NCCL's ABI into which an island call is lowered."""

from __future__ import annotations

import pytest

from hetcomm import _core

FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
INT8, UINT8, INT32, FLOAT32, FLOAT8_E5M2 = 0, 1, 2, 7, 11  # ncclDataType_t
SUM, PROD, MAX, MIN, AVG = range(5)  # ncclRedOp_t


def call(
    kind: str,
    pieces: list[tuple[int, int, int, int, int]],
    places: list[tuple[int, int]] | None = None,
    dtype: str = "float32",
    op: str = "sum",
) -> _core.IslandCall:
    return _core.IslandCall(
        getattr(_core.StepKind, f"island_{kind}"), getattr(_core.Dtype, dtype),
        getattr(_core.ReduceOp, op), 0, pieces, places or [],
    )  # fmt: skip


def test_libraries_reduce_the_documented_dtypes() -> None:
    expected = {
        (dtype, op) for dtype in FLOATS + INTEGERS for op in ("sum", "product", "min", "max")
    }
    expected |= {(dtype, op) for dtype in FLOATS for op in ("average", "premul_sum")}
    expected |= {("boolean", op) for op in ("sum", "product", "min", "max", "band", "bor")}
    assert {
        (dtype, op)
        for dtype in _core.Dtype.__members__
        for op in _core.ReduceOp.__members__
        if _core.ccl_reduces(getattr(_core.Dtype, dtype), getattr(_core.ReduceOp, op))
    } == expected


def test_all_reduce_is_one_call_per_buffer() -> None:
    adjacent = call(
        "all_reduce", [(-1, -1, 0x100, 0x900, 3), (-1, -1, 0x10C, 0x90C, 2)], [(0, 50), (3, 53)]
    )
    assert _core.lower_ccl(adjacent, 1, 2) == [("AllReduce", 0x100, 0x900, 5, FLOAT32, SUM, -1)]
    apart = call(
        "all_reduce", [(-1, -1, 0x100, 0x900, 3), (-1, -1, 0x10C, 0x90C, 2)], [(0, 50), (3, 54)]
    )
    assert [row[3] for row in _core.lower_ccl(apart, 1, 2)] == [3, 2]


def test_scaled_sums_are_operations_of_the_library() -> None:
    rows = [(-1, -1, 0x100, 0x900, 3)]
    average = call("all_reduce", rows, dtype="float8_e5m2", op="average")
    assert _core.lower_ccl(average, 0, 2) == [("AllReduce", 0x100, 0x900, 3, FLOAT8_E5M2, AVG, -1)]


def test_adjacent_addresses_alone_do_not_join() -> None:
    """Addresses differ between members, so only places may decide."""
    rows = _core.lower_ccl(
        call("all_reduce", [(-1, -1, 0x100, 0x900, 3), (-1, -1, 0x10C, 0x90C, 2)]), 0, 2
    )
    assert [row[3] for row in rows] == [3, 2]


def test_equal_shards_are_reduce_scatter() -> None:
    """Also if the shards are cut finer, as for the owners of another island."""
    fine = [(-1, 0, 0x100, 0, 2), (-1, 0, 0x108, 0, 4), (-1, 1, 0x118, 0x700, 6)]
    places = [(0, 90), (2, 92), (6, 96)]
    assert _core.lower_ccl(call("reduce_scatter", fine, places), 1, 2) == [
        ("ReduceScatter", 0x100, 0x700, 6, FLOAT32, SUM, -1)
    ]


def test_the_rest_of_a_longer_last_shard_has_a_call_of_its_own() -> None:
    pieces = [(-1, 0, 0x100, 0, 6), (-1, 1, 0x118, 0x700, 8)]
    assert _core.lower_ccl(call("reduce_scatter", pieces, [(0, 90), (6, 96)]), 1, 2) == [
        ("ReduceScatter", 0x100, 0x700, 6, FLOAT32, SUM, -1),
        ("Reduce", 0x130, 0x718, 2, FLOAT32, SUM, 1),
    ]
    pieces = [(0, -1, 0, 0x200, 3), (1, -1, 0x800, 0x20C, 5)]
    assert _core.lower_ccl(call("all_gather", pieces, [(0, 10), (0, 13)]), 1, 2) == [
        ("AllGather", 0x800, 0x200, 12, INT8, SUM, -1),
        ("Broadcast", 0x80C, 0x218, 8, INT8, SUM, 1),
    ]


@pytest.mark.parametrize(
    ("pieces", "places"),
    [
        ([(-1, 0, 0x100, 0, 6), (-1, 1, 0x118, 0x700, 5)], [(0, 90), (6, 96)]),  # unequal
        ([(-1, 0, 0x100, 0, 6), (-1, 1, 0x118, 0x700, 6)], [(0, 90), (7, 96)]),  # not adjacent
        ([(-1, 1, 0x100, 0x700, 6), (-1, 0, 0x118, 0, 6)], [(0, 90), (6, 96)]),  # in another order
        ([(-1, 0, 0x100, 0, 6), (-1, 1, 0x118, 0x700, 6)], []),  # places unknown
    ],
)
def test_other_shards_are_reduced_one_by_one(
    pieces: list[tuple[int, int, int, int, int]], places: list[tuple[int, int]]
) -> None:
    rows = _core.lower_ccl(call("reduce_scatter", pieces, places), 1, 2)
    assert rows == [
        ("Reduce", piece[2], piece[3], piece[4], FLOAT32, SUM, piece[1]) for piece in pieces
    ]


def test_all_gather_moves_bytes() -> None:
    pieces = [(0, -1, 0, 0x200, 3), (1, -1, 0x800, 0x20C, 3)]
    assert _core.lower_ccl(call("all_gather", pieces, [(0, 10), (0, 13)]), 1, 2) == [
        ("AllGather", 0x800, 0x200, 12, INT8, SUM, -1)
    ]
    unequal = [(0, -1, 0, 0x200, 3), (1, -1, 0x800, 0x20C, 2)]
    assert _core.lower_ccl(call("all_gather", unequal, [(0, 10), (0, 13)]), 1, 2) == [
        ("Broadcast", 0x200, 0x200, 12, INT8, SUM, 0),
        ("Broadcast", 0x800, 0x20C, 8, INT8, SUM, 1),
    ]


def test_all_to_all_is_messages_and_a_copy() -> None:
    pieces = [
        (0, 0, 0, 0, 1), (0, 1, 0, 0x210, 2), (1, 0, 0x300, 0, 3), (1, 1, 0x310, 0x220, 4),
        (1, 1, 0x500, 0x500, 9), (2, 0, 0, 0, 5),
    ]  # fmt: skip
    assert _core.lower_ccl(call("all_to_all", pieces, dtype="bytes16"), 1, 3) == [
        ("Recv", 0, 0x210, 32, INT8, SUM, 0),
        ("Send", 0x300, 0, 48, INT8, SUM, 0),
        ("copy", 0x310, 0x220, 64, INT8, SUM, -1),
    ]


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_empty_pieces_are_no_calls(kind: str) -> None:
    assert _core.lower_ccl(call(kind, [(0, 1, 0, 0, 0), (1, 0, 0, 0, 0)]), 0, 2) == []


@pytest.mark.parametrize(
    ("dtype", "op", "expected"),
    [
        ("boolean", "sum", (UINT8, MAX)),
        ("boolean", "bor", (UINT8, MAX)),
        ("boolean", "product", (UINT8, MIN)),
        ("boolean", "band", (UINT8, MIN)),
        ("int32", "max", (INT32, MAX)),
        ("int32", "min", (INT32, MIN)),
        ("int8", "product", (INT8, PROD)),
    ],
)
def test_abi_numbers_match_the_headers(dtype: str, op: str, expected: tuple[int, int]) -> None:
    rows = _core.lower_ccl(
        call("all_reduce", [(-1, -1, 0x100, 0x100, 3)], dtype=dtype, op=op), 0, 2
    )
    assert [row[4:6] for row in rows] == [expected]
