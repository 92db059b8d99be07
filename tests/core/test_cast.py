"""Casts on the host against float64 NumPy, on every instruction set of this processor."""

from __future__ import annotations

import os
import re

import instruction_sets
import numpy as np
import pytest
import torch
from float_oracle import FORMATS, NARROW, SIZES, at_offset, decode, encode, magnitudes, random_raw

from hetcomm import _core

SEED = int(os.environ.get("HETCOMM_TEST_SEED", "71"))
FORMAT = {name: dtype for name, dtype in _core.Dtype.__members__.items() if dtype.floating}
TORCH = {name: getattr(torch, name) for name in NARROW if FORMAT[name].torch}


def cast(to: str, source: str, raw: np.ndarray, offset: int = 0) -> np.ndarray:
    placed = at_offset(raw, offset)
    target = at_offset(np.full(raw.size // SIZES[source] * SIZES[to], 0xA5, np.uint8), 3 * offset)
    _core.cast(FORMAT[to], target, FORMAT[source], placed)
    np.testing.assert_array_equal(placed, raw)
    return target


def test_every_format_exists() -> None:
    assert {name: value.size for name, value in FORMAT.items()} == SIZES


@pytest.mark.parametrize("name", TORCH)
def test_the_oracle_knows_the_formats(name: str) -> None:
    form = NARROW[name]
    codes: np.ndarray = np.arange(1 << (8 * SIZES[name])).astype(form.storage)
    theirs = torch.from_numpy(codes.view(f"i{SIZES[name]}").copy()).view(TORCH[name])
    np.testing.assert_array_equal(decode(name, codes.view(np.uint8)), theirs.double().numpy())


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", NARROW)
def test_every_number_of_a_narrow_format_is_converted(source: str, to: str) -> None:
    form = NARROW[source]
    raw = np.arange(1 << (8 * SIZES[source])).astype(form.storage).view(np.uint8)
    np.testing.assert_array_equal(cast(to, source, raw), encode(to, decode(source, raw)))


def critical(to: str) -> np.ndarray:
    """Float64 numbers at and beside every number of a format, and every middle of two numbers."""
    if to not in NARROW:
        return np.array([0.0, 1e-300, 5e-324, 1e300, 3.4028235677973366e38, np.inf, np.nan])
    table = magnitudes(to)
    points = np.concatenate([table, (table[1:] + table[:-1]) / 2, [2 * table[-1], 1e300, np.inf]])
    points = np.concatenate(
        [points, np.nextafter(points, 0), np.nextafter(points, np.inf), [np.nan]]
    )
    return np.concatenate([points, -points])


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_values_between_numbers_are_rounded(source: str, to: str) -> None:
    values = critical(to)
    if source == "float32":
        with np.errstate(over="ignore"):
            near = values.astype(np.float32)
            beside = [np.nextafter(near, np.float32(end)) for end in (0, np.inf)]
        raw = np.concatenate([near, *beside]).view(np.uint8)
    else:
        raw = values.view(np.uint8)
    np.testing.assert_array_equal(cast(to, source, raw), encode(to, decode(source, raw)))


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_any_count_at_any_address_is_converted(source: str, to: str) -> None:
    generator = np.random.default_rng(SEED)
    for count in (0, 1, 7, 31, 33, 1000, 4099):
        raw = random_raw(source, count, generator)
        want = encode(to, decode(source, raw))
        for offset in (0, 1, 2, 5):
            got = cast(to, source, raw, offset)
            np.testing.assert_array_equal(got, want, f"seed {SEED}: {count} at {offset}")


def test_conversion_works_in_place() -> None:
    raw = random_raw("float16", 333, np.random.default_rng(SEED))
    want = encode("bfloat16", decode("float16", raw))
    _core.cast(FORMAT["bfloat16"], raw, FORMAT["float16"], raw)
    np.testing.assert_array_equal(raw, want)


def test_unfitting_buffers_are_rejected() -> None:
    half, single = FORMAT["float16"], FORMAT["float32"]
    room = np.zeros(16, np.uint8)
    cases: list[tuple[str, tuple[object, ...]]] = [
        ("target: expected 8 bytes; got 4", (single, bytearray(4), half, bytes(4))),
        ("source: expected a multiple of 4 bytes; got 6", (half, bytearray(3), single, bytes(6))),
        ("an overlap", (single, room[:8], half, room[4:8])),
        ("an overlap", (half, room[:8], half, room[2:10])),
        ("expected a contiguous writable buffer", (half, bytes(4), half, bytes(4))),
    ]
    for message, arguments in cases:
        with pytest.raises(_core.InvalidArgumentError, match=re.escape(message)):
            _core.cast(*arguments)


@pytest.mark.slow
@instruction_sets.others
def test_every_instruction_set_gives_the_same_bits(name: str) -> None:
    instruction_sets.run_tests(name, __file__)
