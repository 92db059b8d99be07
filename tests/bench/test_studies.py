"""bench/study.py and its modules, without peers and without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import peers
import pytest
import study
from studies import provenance, report, running, stored, tuned, verdicts
from studies.bound import capacities, least_bytes, least_seconds
from studies.catalogue import OTHERS, STUDIES
from studies.model import Layout, Mode, Outcome, Plan, Run, Study, Target, median_of

from hetcomm import _core


def row(backend: str, median: float, size: int = 8, **more: Any) -> dict[str, Any]:
    told = {"backend": backend, "library": backend.upper(), "collective": "all_reduce"}
    return {**told, "bytes": size, "median": median, "predicted": None, "legs": None, **more}


@pytest.mark.parametrize("words", [["sideways"], [], ["island-latency", "sideways"]])
def test_unknown_study_is_rejected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        study.main(words)
    said = capsys.readouterr().err
    assert "expected studies out of island-latency" in said and ("sideways" in said or not words)


def test_unknown_peer_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["start-up", "--peers", "lam", "--output", str(tmp_path)]) == 2
    assert "expected a peer out of openmpi, mpich; got 'lam'" in capsys.readouterr().err


def test_missing_output_folder_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        study.main(["start-up", "--output", str(tmp_path / "none" / "there")])
    assert "--output: expected a folder" in capsys.readouterr().err


def test_peer_without_installation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(peers.PeerError, match=r"it is not there; run python\S* bench/peers.py"):
        peers.python_of("mpich", tmp_path)


def test_missing_package_index_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_index(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        failed = "pip" in command
        return subprocess.CompletedProcess(command, int(failed), "", "nowhere\nno distribution\n")

    monkeypatch.setattr(subprocess, "run", no_index)
    with pytest.raises(peers.PeerError, match=r"status 1: no distribution\. Check that a"):
        peers.make("mpich", tmp_path)
    assert not (tmp_path / "mpich").exists()


def test_open_mpi_yields_where_ranks_outnumber_cores() -> None:
    def yields(ranks: int) -> str:
        return peers.settings("openmpi", ranks, 1)["OMPI_MCA_mpi_yield_when_idle"]

    assert (yields(1), yields(4096)) == ("0", "1")


@pytest.mark.parametrize(
    "rates, seconds",
    [([1, 1], 1), ([1, 0.5], 2), ([1, 1, 1], 4 / 3), ([1, 1, 0.25], 4), ([1, 1, 1, 1], 1.5)],
)
def test_wire_bound_counts_each_byte_once_per_host(rates: list[float], seconds: float) -> None:
    hosts = [2] * len(rates)
    found = least_seconds("all_reduce", 100, hosts, [100 * rate for rate in rates])
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    "collective, seconds",
    [("all_gather", 1.5), ("reduce_scatter", 1.5), ("broadcast", 2), ("reduce", 2),
     ("all_to_all", 1.5)],
)  # fmt: skip
def test_wire_bound_allows_uneven_hosts(collective: str, seconds: float) -> None:
    found = least_seconds(collective, 800, [1, 3], [800, 400])
    assert found == pytest.approx(seconds)
    three = least_seconds("broadcast", 800, [1, 1, 1], [800, 800, 800])
    assert three == 1  # a host that has a part relays it


@pytest.mark.parametrize("hosts", [[2, 2], [1, 3], [4, 1]])
@pytest.mark.parametrize("collective", ["all_reduce", *OTHERS])
def test_plans_of_two_hosts_send_no_more(collective: str, hosts: list[int]) -> None:
    cluster = [_core.RankInfo(host=f"{i}") for i, ranks in enumerate(hosts) for _ in range(ranks)]
    topology, ranks = _core.Topology(cluster), sum(hosts)
    size = ranks << 18
    blocks = collective in ("all_gather", "reduce_scatter", "all_to_all")
    spec = _core.Spec(
        _core.Collective.__members__[collective],
        _core.Dtype.float32,
        _core.ReduceOp.sum,
        count=size // 4 // (ranks if blocks else 1),
    )
    assert spec.largest_buffer(ranks) == size
    cost = _core.predict(topology, _core.Planner(topology).plan_all(spec))
    sent, received, total = least_bytes(collective, size, hosts)
    assert cost.bridge_bytes == max(sent) and sum(sent) == sum(received) == total


def test_capacities_follow_the_measured_link() -> None:
    link = {"bytes_per_second": [120e6]}
    slower = Layout("2+2+2", ("1gbit", "1gbit", "250mbit"))
    assert capacities(slower, link) == pytest.approx([120e6, 120e6, 30e6])
    both = Layout("2+2", ("1gbit+2gbit",))
    assert capacities(both, {"bytes_per_second": [120e6, 240e6]}) == pytest.approx([360e6] * 2)
    assert capacities(Layout("1+1"), {"bytes_per_second": [2e9]}) == [2e9, 2e9]


def test_the_worse_of_two_ratios_counts() -> None:
    run = Run(Layout("2"), (8, 64), (Target("mpi", 1.5, (8,)),))
    jobs = [
        Outcome("2 ranks", "openmpi", [row("hetcomm", 2.0), row("mpi", 6.0, library="Open MPI")]),
        Outcome("2 ranks", "mpich", [row("hetcomm", 2.0), row("mpi", 2.5, library="MPICH")]),
    ]
    (found,) = verdicts.of_run(run, jobs)
    assert (found.name, found.ratio, found.met) == ("MPICH", 1.25, False)
    jobs[1].rows[1]["median"] = 4.0
    (found,) = verdicts.of_run(run, jobs)
    assert (found.ratio, found.met, found.target) == (2.0, True, ">= 1.5")
    (found,) = verdicts.of_run(run, [jobs[0], Outcome("2 ranks", "mpich", [], failed="why")])
    assert found.met is None and "not measured" in found.case


def test_ratios_to_the_wire_use_the_median() -> None:
    layout = Layout("1+1", ("1gbit",))
    run = Run(layout, (1000,), (Target("bound", 1.05), Target("round trips", 1.5)), opponents=())
    link = {"bytes_per_second": [1000.0], "round_trip": 2.0}
    legs = {"bridge_bytes": 1010}
    job = Outcome(layout.describe(), "", [row("hetcomm", 1.04, 1000, legs=legs)], link=link)
    bound, trips, sent = verdicts.of_run(run, [job])
    assert bound.met and bound.ratio == pytest.approx(1.04)
    assert trips.met and trips.ratio == pytest.approx(0.52)
    assert sent.ratio == pytest.approx(1.01)


def test_predictions_and_scratch_have_verdicts() -> None:
    told = {"total": 1.0, "scratch_bytes": 65 << 20}
    jobs = [Outcome("2 ranks", "", [row("hetcomm", t, predicted=told) for t in (1.1, 0.9, 1.5)])]
    middle, worst = verdicts.of_prediction(jobs)
    assert middle.ratio == pytest.approx(0.1) and middle.met
    assert worst.ratio == pytest.approx(0.5) and not worst.met
    (scratch,) = verdicts.of_scratch(jobs)
    assert not scratch.met


def test_every_layout_is_possible() -> None:
    for each in STUDIES.values():
        for run in each.runs:
            cluster = run.layout.cluster()
            assert (cluster.ranks if cluster else run.layout.hosts[0]) >= 2


def test_a_job_runs_and_leaves_its_files(tmp_path: Path) -> None:
    run, plan = Run(Layout("2"), (8, 1024), opponents=()), Plan(quick=True, peers=())
    said: list[str] = []
    (outcome,) = running.measure(run, plan, said.append)
    assert outcome.failed == "" and [each["bytes"] for each in outcome.rows] == [8, 1024]
    assert said[-1] == "2 ranks: hetcomm " and said[:-1] in ([], ["2 ranks: tuning"])
    # The second run finds the profile of the first.
    assert running.profile(run, plan, said.append) and said[-1] == "2 ranks: hetcomm "
    assert outcome.settings["HETCOMM_PROFILE"].startswith("build/profiles")
    facts = {**provenance.of_this_run([], ()), "seconds": 1.0}
    found = verdicts.of_prediction([outcome])
    result = stored.Result("small", "a command", facts, verdicts=found, outcomes=[outcome])
    report.show(result, "a try")
    result.write(tmp_path)
    written = stored.load("small", tmp_path)
    assert written.facts["machine"]["cores"] and len(written.outcomes[0].rows) == 2
    assert median_of(written.outcomes, Layout("2"), 8, "hetcomm") == pytest.approx(
        outcome.rows[0]["median"], rel=1e-4
    )


def test_a_job_runs_in_every_mode() -> None:
    mode = Mode(in_place=False, work=1e-4)
    run = Run(Layout("2"), (8,), opponents=(), mode=mode)
    assert run.where == "2 ranks, out of place, isolated"
    (outcome,) = running.measure(run, Plan(quick=True, peers=()), lambda text: None)
    assert outcome.failed == "" and outcome.where == run.where
    assert outcome.facts["settings"]["effort"]["gap"]["work"] == mode.work
    (row,) = outcome.rows
    assert not row["in_place"] and row["calls_per_sample"] == 1
    assert verdicts.of_prediction([outcome]) == []
    assert median_of([outcome], Layout("2"), 8, "hetcomm") is None  # not measured in this mode


@pytest.mark.parametrize("name", ["island-latency", "island-bandwidth"])
def test_every_mode_has_its_targets(name: str) -> None:
    runs = [run for run in STUDIES[name].runs if run.layout == Layout("2")]
    runs = [run for run in runs if run.collectives == ("all_reduce",)]
    assert {run.mode.describe() for run in runs} == {
        "", "out of place", "in place, isolated", "out of place, isolated",
    }  # fmt: skip
    for run in runs:
        aims = [aim.sizes or run.sizes for aim in run.targets if aim.kind == "mpi"]
        assert {size for sizes in aims for size in sizes} == set(run.sizes)


def test_a_quick_run_changes_no_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_pages(*_: Any) -> None:
        raise AssertionError("pages are made anew")

    monkeypatch.setattr(study, "TRIES", tmp_path)
    monkeypatch.setattr(study.pages, "refresh", no_pages)
    monkeypatch.setitem(STUDIES, "many-ranks", Study("none", (Run(Layout("2"), (8,)),)))
    assert study.main(["many-ranks", "--quick", "--peers", "none"]) == 0
    written = stored.load("many-ranks", tmp_path)
    assert written.command == "python bench/study.py many-ranks --quick"
    assert written.facts["arguments"] == ["many-ranks", "--quick", "--peers", "none"]


def test_a_failed_study_keeps_the_stored_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("this is why")

    monkeypatch.setattr(study, "TRIES", tmp_path / "tries")
    monkeypatch.setattr(study.peers, "make", lambda name: name)
    monkeypatch.setattr(study.provenance, "versions", lambda names: {})
    monkeypatch.setattr(study.pages, "refresh", lambda results: [])
    monkeypatch.setitem(STUDIES, "start-up", Study("none", special=fails))
    before = (stored.FOLDER / "start-up.json").read_bytes()
    assert study.main(["start-up"]) == 1
    assert (stored.FOLDER / "start-up.json").read_bytes() == before
    assert stored.load("start-up", tmp_path / "tries").failures == ["this is why"]
    said = capsys.readouterr().out
    assert "the stored result stays as it is" in said and "failed: this is why" in said


def test_the_list_shows_each_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(STUDIES)


def test_profiles_cover_the_sizes_of_a_run() -> None:
    assert tuned.sizes_for(8) == [16, 64, 256, 1024] and tuned.sizes_for(5000)[-2:] == [4096, 16384]
    assert tuned.sizes_for(64 << 20)[-1] == 64 << 20 == tuned.sizes_for(1 << 40)[-1]
    assert tuned.place_of(Layout("2+2"), 8) == tuned.place_of(Layout("2+2", order="interleaved"), 8)
    places = {
        tuned.place_of(Layout(ranks, (rate,)), 8)
        for ranks in ("2", "2+2")
        for rate in ("1gbit", "5gbit")
    }
    assert len(places) == 4


def test_a_failing_job_is_reported() -> None:
    failing = [sys.executable, "-c", "import sys; print('this is why'); sys.exit(3)"]
    assert running.supervised(failing, running.environment()) == "status 3: this is why"
