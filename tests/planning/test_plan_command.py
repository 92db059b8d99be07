"""`hetcomm plan`: what it prints and writes, and its refusals."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plan_inputs import DEVICES, cluster_of, profile_of, small_model
from rich.console import Console
from typer.testing import CliRunner, Result

import hetcomm
from hetcomm.cli import app
from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.emulate.cluster_text import text
from hetcomm.plan import Layout, Profile
from hetcomm.plan.search import best_first
from hetcomm.plan.search.propose import Limits, check_links, propose
from hetcomm.plan.search.show import render

MODEL = small_model()
MIXED = cluster_of({"A100": 2, "V100": 2}, ranks=2)


def profile(memory: float = 40e9) -> Profile:
    devices = {name: replace(DEVICES[name], memory=memory) for name in ("A100", "V100")}
    return profile_of(MODEL, devices, tensors=(1, 2), micro_batches=(1, 2, 4))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "cluster.toml").write_text(text(MIXED))
    (tmp_path / "model.json").write_text(MODEL.text())
    profile().save(tmp_path / "profile.json")
    return tmp_path


def run(files: Path, *options: str, cluster: str = "cluster.toml") -> Result:
    inputs = [str(files / cluster), str(files / "model.json")]
    return CliRunner().invoke(app, ["plan", *inputs, *options], terminal_width=120)


def test_the_best_layout_is_shown_and_written(files: Path) -> None:
    written = {name: files / name for name in ("answer.json", "layout.json", "picture.png")}
    outputs = [
        word
        for option, path in zip(("--json", "--layout", "--picture"), written.values(), strict=True)
        for word in (option, str(path))
    ]
    given = ("--profile", str(files / "profile.json"), "--batch", "16", "--top", "3")
    result = run(files, *given, *outputs)
    assert result.exit_code == 0, result.output
    layout = Layout.load(written["layout.json"])
    assert (layout.batch, layout.layers) == (16, MODEL.layers)
    assert set(layout.ranks) <= {0, 1, 2, 3}
    answer = json.loads(written["answer.json"].read_text())
    assert answer["best"]["layout"] == json.loads(layout.text())
    assert sum(answer["best"]["parts"].values()) == pytest.approx(answer["best"]["seconds"])
    assert 0 < answer["share_of_upper_bound"] <= 1
    slower = [each["seconds"] for each in answer["runners_up"]]
    assert len(slower) == 2 and slower == sorted(slower)
    assert answer["search"]["least_seconds"] <= answer["best"]["seconds"] <= slower[0]
    assert written["picture.png"].read_bytes().startswith(b"\x89PNG")
    for word in ("per step", "of the upper bound", "No layout of the space", "Runners-up"):
        assert word in result.output


def test_a_cut_search_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count(0, 0.02)  # each look at the clock takes 20 ms
    seconds = SimpleNamespace(monotonic=looks.__next__)
    monkeypatch.setattr(best_first, "time", seconds)
    proposal = propose(MIXED, MODEL, profile(), 64, Limits(seconds=3, tolerance=0.0))
    assert proposal.found.cut
    assert 0 < proposal.found.gap < 1
    output = io.StringIO()
    Console(file=output, width=100).print(render(proposal))
    assert f"may be up to {proposal.found.gap:.1%} faster" in " ".join(output.getvalue().split())


def test_the_page_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[2] / "docs/planning-search.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["proposal"].best.layout.batch == 32


def test_no_rank_is_idle_where_that_is_asked() -> None:
    uneven = cluster_of({"A100": 3}, ranks=3)
    free = propose(uneven, MODEL, profile(), 4, Limits(schedules=("1f1b",)))
    assert propose(uneven, MODEL, profile(), 4, Limits(every_rank=True)).idle == []
    assert free.samples_per_second(free.best) > 0
    assert len(free.idle) + len(free.best.layout.ranks) == 3


def test_a_job_that_fits_nowhere_learns_what_is_missing() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError) as caught:
        propose(MIXED, MODEL, profile(memory=2.05e9), 16)
    for part in ("no layout fits the memory", "GB more than the device has", "times as many"):
        assert part in str(caught.value)
    limits = Limits(recompute=(False,), micro_batches=(8,))
    with pytest.raises(hetcomm.InvalidArgumentError, match="permit recompute; permit micro-b"):
        propose(MIXED, MODEL, profile(memory=2.05e9), 16, limits)


def test_a_search_that_found_nothing_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count(0, 0.02)  # each look at the clock takes 20 ms
    seconds = SimpleNamespace(monotonic=looks.__next__)
    monkeypatch.setattr(best_first, "time", seconds)
    tight = profile(memory=2.08e9)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"within 1 s.*search longer with --sec"):
        propose(MIXED, MODEL, tight, 16, Limits(seconds=1))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(top=0), "limits.top: expected a whole number of at least 1, got 0"),
        (Limits(schedules=()), r"limits.schedules: expected at least one value, got \(\)"),
        (Limits(schedules=("2f2b",)), "limits.schedules: expected one of gpipe"),
        (Limits(tensors=(0,)), "limits.tensors: expected a whole number of at least 1, got 0"),
        (Limits(micro_batches=(0,)), "limits.micro_batches: expected a whole number"),
        (Limits(tolerance=-0.1), "limits.tolerance: expected a finite number of at least 0"),
        (Limits(seconds=float("nan")), "limits.seconds: expected a finite number above 0, got nan"),
        (Limits(micro_batches=(2, 4)), "batch: expected a multiple of .* out of 2, 4, got 7"),
        (Limits(tensors=(3,)), "the batch, the degrees and the ranks permit, found none with any"),
    ],
)
def test_limits_that_permit_nothing_are_refused(limits: Limits, expected: str) -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=expected):
        propose(MIXED, MODEL, profile(), 7, limits)


def test_ranks_that_cannot_all_have_a_place_are_refused() -> None:
    limits = Limits(tensors=(2,), every_rank=True)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"permit more .* or idle ranks"):
        propose(cluster_of({"A100": 3}, ranks=3), MODEL, profile(), 4, limits)


def test_kinds_without_measurements_are_named() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"H100.*measure it with hetcomm"):
        propose(cluster_of({"H100": 2}), MODEL, profile(), 16)


def test_unlimited_nics_are_refused() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match="a NIC 0: expected a rate"):
        check_links(Cluster((Host("a", 1, (Nic(),)),)), None)
    check_links(MIXED, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "a profile of the cluster's devices"),
        (["--profile", "nowhere"], "nowhere"),
        (["--profile", "profile.json", "--schedule", "2f2b"], "one of gpipe, 1f1b"),
        (["--profile", "profile.json", "--tensor", "0"], "--tensor: expected at least 1, got 0"),
        (["--profile", "profile.json", "--links", "nowhere"], "a profile of hetcomm tune"),
        (["--profile", "profile.json", "--layout", "no/where"], "--layout: expected a file"),
        (["--profile", "profile.json", "--picture", "no/where.png"], "--picture: expected a file"),
    ],
)
def test_bad_options_are_refused(files: Path, options: list[str], expected: str) -> None:
    given = [str(files / word) if word == "profile.json" else word for word in options]
    error = run(files, *given, "--batch", "4").exception
    assert isinstance(error, hetcomm.InvalidArgumentError)
    assert expected in str(error)


def test_a_bad_cluster_file_is_refused(files: Path) -> None:
    (files / "bad.toml").write_text("host = 3\n")
    options = ("--profile", str(files / "profile.json"))
    error = run(files, *options, cluster="bad.toml").exception
    assert isinstance(error, hetcomm.InvalidArgumentError)
    assert "bad.toml" in str(error)
