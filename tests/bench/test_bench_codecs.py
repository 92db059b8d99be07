"""Codecs in `hetcomm bench`: contenders, errors, tolerances, and elements from a file."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benching import CLUSTER, bench, measured

import hetcomm
from hetcomm import _core
from hetcomm.bench import data
from hetcomm.bench.backends import family_of
from hetcomm.bench.case import Case, case_of
from hetcomm.bench.check import compare, fill_input
from hetcomm.bench.inputs import Inputs
from hetcomm.bench.start import Start
from hetcomm.bench.tolerance import GROUP, group_maxima, tolerance_of
from hetcomm.bench.values import CHUNK, ELEMENTS, cast

LOSSY = [name for name in _core.codecs() if not _core.is_lossless(name)]
QUICK = ("--sizes", "64k", "--iterations", "4", "--turns", "2", "--warmup", "1")
COUNT = CHUNK + 3 * GROUP + 7


def gradients(seed: int) -> Inputs:
    """Numbers of many magnitudes around 0."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=50_001) * 10.0 ** generator.uniform(-6, 0, 50_001)
    return Inputs(data=numbers.astype(np.float32))


def rounded(codec: str, numbers: np.ndarray) -> np.ndarray:
    """What a receiver of these numbers has."""
    numbers = np.ascontiguousarray(numbers, np.float32)
    dtype = _core.Dtype.float32
    encoded = np.zeros(_core.codec_capacity(codec, dtype, len(numbers)), np.uint8)
    length = _core.codec_encode(codec, dtype, encoded, numbers)
    decoded = np.zeros_like(numbers)
    _core.codec_decode(codec, dtype, decoded, encoded[:length])
    return decoded


def inputs_of(case: Case, inputs: Inputs) -> list[np.ndarray]:
    found = []
    for rank in range(case.ranks):
        found.append(np.zeros(case.blocks(rank)[0] * case.count, ELEMENTS[case.dtype].kept))
        fill_input(case, rank, inputs, found[-1])
    return found


WIDE = ["int4:2048", "int4:2048:bf16", "int8:32:bf16"]


@pytest.mark.parametrize("codec", [*LOSSY, *WIDE])
@pytest.mark.parametrize("source", [Inputs(3), gradients(3)], ids=["random", "data"])
def test_what_a_codec_loses_is_allowed_and_more_is_not(codec: str, source: Inputs) -> None:
    case = case_of("all_reduce", 4 * COUNT, 4)
    parts, tolerance = inputs_of(case, source), tolerance_of(codec)
    islands = [parts[0] + parts[1], parts[2] + parts[3]]
    total = rounded(codec, sum(rounded(codec, each) for each in islands))
    outcome = compare(case, 0, source, total, tolerance)
    assert outcome.wrong == ""
    assert 1e-5 < np.sqrt(outcome.difference / outcome.norm) < 1
    assert compare(case, 0, source, total).wrong  # not without the codec
    assert "within" in compare(case, 0, source, 3 * total, tolerance).wrong
    if codec != "topk":  # which may lose any element
        assert compare(case, 0, source, np.zeros_like(total), tolerance).wrong
    total[5] = np.nan
    assert compare(case, 0, source, total, tolerance).wrong.startswith("element 5 is nan")


def test_groups_that_begin_anywhere_are_covered() -> None:
    sizes = np.ones(5 * GROUP + 9)
    sizes[2 * GROUP] = 7
    maxima = group_maxima(sizes, 100.0)
    assert len(maxima) == len(sizes)
    assert (maxima[GROUP : 4 * GROUP] == 7).all()
    assert (maxima[:GROUP] == 100).all() and (maxima[5 * GROUP :] == 100).all()
    assert (maxima[4 * GROUP : 5 * GROUP] == 1).all()


def test_only_lossy_codecs_have_a_tolerance() -> None:
    assert all(tolerance_of(name) for name in LOSSY)
    assert not any(tolerance_of(name) for name in ("", "none", "auto", "lossless"))
    assert family_of("hetcomm:int4:128:bf16") == ("hetcomm", "int4:128:bf16")


class Opposite(Inputs):
    """Rank 1 has about the negative elements of rank 0."""

    def elements(self, dtype: str, rank: int, start: int, count: int) -> np.ndarray:
        return super().elements(dtype, rank, start, count) * (-1) ** rank


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sums_near_zero_are_compared_by_the_size_of_their_inputs(dtype: str) -> None:
    case = case_of("all_reduce", 4 * 1000, 2, dtype=dtype)
    source = Opposite(data=gradients(5).data)
    first, second = (ELEMENTS[dtype].numbers(part) for part in inputs_of(case, source))
    rounding = ELEMENTS[dtype].epsilon * np.abs(first)
    assert compare(case, 0, source, cast(dtype, first + second + rounding)).wrong == ""
    assert compare(case, 0, source, cast(dtype, first + second + 8 * rounding)).wrong
    assert compare(case, 0, source, cast(dtype, first)).wrong


def test_data_are_repeated_and_scaled_by_rank() -> None:
    source = Inputs(data=np.array([1.0, -2.0, 4.0], np.float32))
    assert source.elements("float32", 0, 2, 5).tolist() == [4, 1, -2, 4, 1]
    assert source.elements("float64", 3, 0, 2) == pytest.approx([1.03, -2.06])
    assert source.elements("bfloat16", 0, 1, 1).tolist() == [0xC000]
    assert source.largest(3) == pytest.approx(4.12) and Inputs(1).largest(3) == 1.5


def test_the_last_floating_array_of_a_file_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "numbers.npz"
    np.savez(file, first=np.zeros(3), last=np.ones((2, 2), np.float16), count=np.arange(3))
    assert data.numbers_of(file).tolist() == [1, 1, 1, 1]
    np.savez(file, count=np.arange(3))
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"array of finite floats .*, got none"):
        data.numbers_of(file)
    np.savez(file, first=np.array([np.nan]))
    with pytest.raises(hetcomm.InvalidArgumentError, match="got NaN or infinity"):
        data.numbers_of(file)
    file.write_text("no archive")
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"expected a file of numpy.savez"):
        data.numbers_of(file)


@pytest.mark.needs("torch")
def test_gradients_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(data, "STEP", 0)
    said: list[str] = []
    files = [data.gradients_file(said.append) for _ in range(2)]
    assert files == [tmp_path / "hetcomm/gradients-step0.npz"] * 2
    assert len(said) == 1 and str(files[0]) in said[0]
    assert len(data.numbers_of(files[0])) > 1_000_000
    assert not list(tmp_path.glob("hetcomm/unfinished*"))


@pytest.mark.needs("namespaces")
def test_codecs_take_turns_with_plain_calls(tmp_path: Path) -> None:
    file, table = tmp_path / "numbers.npz", tmp_path / "result.csv"
    np.savez(file, gradients=gradients(1).data)
    codecs = ("none", "lossless", "int8")
    done = bench(
        "all_reduce", "all_gather", "--cluster", CLUSTER, "--data", file, *QUICK, "--json",
        "--output", table, *[word for codec in codecs for word in ("--codec", codec)],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    names = ["hetcomm", *(f"hetcomm:{codec}" for codec in codecs)]
    assert [row["backend"] for row in found["rows"]] == names * 2
    assert {row["in_place"] for row in found["rows"]} == {False}
    for plain, none, lossless, int8 in (found["rows"][:4], found["rows"][4:]):
        assert plain["codec"] == "" and plain["fewer_bytes"] is None
        assert none["fewer_bytes"] == 1 and lossless["fewer_bytes"] > 1
        assert plain["error"] == none["error"] == lossless["error"] < 1e-6
        assert 3.5 < int8["fewer_bytes"] < 4 and 1e-4 < int8["error"] < 0.1
    with table.open() as text:
        rows = list(csv.DictReader(text))
    assert [row["codec"] for row in rows] == ["", *codecs] * 2
    assert float(rows[3]["error"]) == found["rows"][3]["error"]


@pytest.mark.needs("namespaces")
def test_the_table_shows_bytes_and_errors() -> None:
    done = bench("--cluster", CLUSTER, "--codec", "int8", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "all_reduce, float32, sum, out of place" in done.stdout
    assert "results checked, within the error of int8" in done.stdout
    assert "fewer bytes" in done.stdout and "3.94x" in done.stdout


def test_a_lossless_codec_is_checked_exactly() -> None:
    found = measured("all_reduce", "--ranks", 2, "--codec", "lossless", "--dtype", "bfloat16")
    assert {row["codec"] for row in found["rows"]} == {"", "lossless"}


@pytest.mark.needs("namespaces", "torch")
def test_calls_without_a_codec_send_zeros_as_they_are() -> None:
    """Timed sums in place are of zeros, for which the default codec would send almost nothing."""
    size = 1 << 20
    found = bench(
        "--cluster", CLUSTER, "--backend", "hetcomm", "--backend", "torch:hetcomm", "--legs",
        *QUICK[2:], "--sizes", size, "--json",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    for row in json.loads(found.stdout)["rows"]:
        assert row["in_place"] and row["codec"] == ""
        assert row["legs"]["bridge_bytes"] > size, row["backend"]


def test_a_command_leaves_its_environment_alone() -> None:
    before = dict(os.environ)
    for command in ("bench", "tune"):
        Start(command, 2, None, None, job=None)
    assert dict(os.environ) == before
