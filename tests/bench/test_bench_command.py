"""`hetcomm bench` with ranks on this host: output, files, wrong results, bad input."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from benching import COMMAND, LAUNCHERS, QUICK, backends_of, bench, measured
from typer.testing import CliRunner

import hetcomm.bench.table
from hetcomm import cli
from hetcomm.bench.case import KINDS

LIAR = Path(__file__).with_name("lying_backend.py")


def test_the_command_prints_a_table_and_writes_files(tmp_path: Path) -> None:
    files = [tmp_path / f"result.{suffix}" for suffix in ("json", "csv", "png")]
    outputs = [word for file in files for word in ("--output", file)]
    done = bench("--ranks", 2, *QUICK, "all_reduce", "barrier", *outputs)
    assert done.returncode == 0, done.stderr
    assert "2 ranks on 1 host" in done.stdout and "results checked" in done.stdout
    assert "all_reduce, float32, sum, in place" in done.stdout
    number = r"+([\d.]+) [mun]?s"
    lines = re.findall(rf"(\S+ (?:Ki)?B) +hetcomm {number} {number} {number}", done.stdout)
    assert [line[0] for line in lines] == ["8 B", "1 KiB", "0 B"]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    with files[1].open() as text:
        rows = list(csv.DictReader(text))
    assert [(row["collective"], row["bytes"]) for row in rows] == [
        ("all_reduce", "8"), ("all_reduce", "1024"), ("barrier", "0"),
    ]  # fmt: skip
    assert tuple(rows[0]) == hetcomm.bench.table.CSV_COLUMNS
    assert float(rows[0]["min"]) <= float(rows[0]["median"]) <= float(rows[0]["p99"])


def test_every_collective_is_measured_and_printed_as_json() -> None:
    found = measured(*KINDS, "--ranks", 2)
    assert found["ranks"] == 2 and found["hosts"] == [0, 0]
    assert found["backends"][0]["name"] == "hetcomm" and found["machine"]["cores"] >= 1
    assert {row["collective"] for row in found["rows"]} == set(KINDS)
    for row in found["rows"]:
        assert 0 < row["min"] <= row["median"] <= row["p99"]
        assert row["checked"] and len(row["median_by_rank"]) == 2
        assert len(row["samples"]) * row["calls_per_sample"] >= 6
        assert row["predicted"]["total"] > 0 and row["predicted"]["bridge"] == 0
    assert found["settings"]["effort"]["iterations"] == 6


@pytest.mark.needs("torch")
def test_backends_take_turns_in_and_out_of_place() -> None:
    found = measured(
        "all_reduce", "reduce", "--ranks", 2, "--backend", "hetcomm", "--backend", "gloo",
        "--backend", "torch:hetcomm", "--out-of-place", "--dtype", "bfloat16", "--op", "max",
    )  # fmt: skip
    names = ["hetcomm", "gloo", "torch:hetcomm"]
    assert backends_of(found) == [(name, size) for size in (8, 1024) for name in names] * 2
    assert {row["dtype"] for row in found["rows"]} == {"bfloat16"}
    assert not any(row["in_place"] for row in found["rows"])


def test_a_wrong_result_ends_the_run() -> None:
    command = (COMMAND[0], "-P", str(LIAR))
    done = bench(*QUICK, "--ranks", 2, "--backend", "hetcomm", "--backend", "liar", command=command)
    assert done.returncode == 1
    assert "liar gives a wrong result for all_reduce sum float32, 1 KiB" in done.stderr
    assert "on rank 1 element 7 is" in done.stderr
    assert done.stderr.count("wrong") == 1 and "GB/s" not in done.stdout
    unchecked = bench(
        *QUICK, "--ranks", 2, "--backend", "liar", "--no-check", "--json", command=command
    )
    assert unchecked.returncode == 0
    assert '"checked": false' in unchecked.stdout


def test_a_dead_rank_ends_the_run() -> None:
    command = (COMMAND[0], "-P", str(LIAR))
    done = bench(*QUICK, "--ranks", 2, "--backend", "ends", command=command)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "hetcomm bench: rank 1 was ended by signal 9\n"


def test_an_error_is_one_line() -> None:
    for wrong in (["--sizes", "0"], ["--sizes", "1024G"]):  # errors of the command, and of a rank
        done = bench("--ranks", 2, *wrong)
        assert done.returncode == 2 and done.stdout == ""
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("hetcomm: --sizes")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["all_reduse"], 'collective: expected one of all_reduce, .*; got "all_reduse"'),
        (["--backend", "glu:glu"], "--backend: expected hetcomm, mpi, torch:NAME"),
        (["--backend", "torch"], "--backend: expected hetcomm, mpi, torch:NAME"),
        (["--sizes", "8:4"], "--sizes: expected"),
        (["--dtype", "float31"], "--dtype: expected one of float32"),
        (["--op", "mean"], "--op: expected one of sum"),
        (["--op", "avg", "--dtype", "int32"], "--op: avg is for floating dtypes, got int32"),
        (["broadcast", "--root", "2"], "--root: expected 0 to 1, got 2"),
        (["all_to_all", "--in-place"], "--in-place: all_to_all has no such form"),
        (["--ranks", "1"], "at least 2 ranks, got 1"),
        (["--output", "result.txt"], "--output: expected a name with .json, .csv, .png"),
        (
            ["--output", "/no/such/folder/r.json"],
            "expected an existing folder, got /no/such/folder",
        ),
        (["--order", "block"], "--order needs --cluster"),
        (["--cluster", "c.toml"], "one of --ranks and --cluster, got both"),
        (["--codec", "zip"], 'unknown codec: expected one of none, .*; got "zip"'),
        (["--codec", "int8", "--in-place"], "--in-place: expected all_reduce out of place"),
        (["--data", "x.npz", "--dtype", "int32"], "--data: expected floating dtypes, got int32"),
        (["--data", "x.npz", "--op", "product"], "--data: expected another operation than product"),
        # Errors that only the ranks find.
        (["--data", "/no/such.npz"], "--data: expected a file of numpy.savez.*/no/such.npz"),
        (["--codec", "int8", "--op", "max"], "hetcomm:int8 cannot do .* int8 is lossy: expected"),
        (["--codec", "int8", "broadcast"], "hetcomm:int8 cannot do .* int8 is lossy: expected"),
        (["--codec", "fp16", "--dtype", "float16"], "codec fp16 does not encode float16"),
        (["--codec", "auto", "send_recv"], "messages between two ranks and barriers have no codec"),
        (["--backend", "torch:glu"], "this torch has no glu, only"),
        (["reduce", "--in-place"], "hetcomm cannot do reduce .*: its output must be separate"),
        (["--sizes", "1024G"], "--sizes: 2 ranks of a host need .* but .* available"),
        (["--device", "cuda"], "host memory, got cuda"),
    ],
)
def test_bad_input_is_rejected(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    ranks = [] if "--ranks" in options else ["--ranks", "2"]
    command = ["bench", "--iterations", "2", "--sizes", "8", *ranks, *options]
    done = CliRunner().invoke(cli.app, command)
    assert isinstance(done.exception, hetcomm.InvalidArgumentError), done.output
    assert re.search(words, str(done.exception)), str(done.exception)
    assert len(str(done.exception).splitlines()) == 1 and done.stdout == ""
