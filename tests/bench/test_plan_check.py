"""bench/plan_check.py: its cases, its comparisons, and a run on one emulated cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plan_check
import pytest
from plan_checks import compare
from plan_checks.cases import CHECKS, CLUSTERS, JOBS, MIXED, SLOWER, THREE
from plan_checks.layouts import counts_of, variants
from studies import plan_blocks, stored
from studies.model import Verdict

from hetcomm.plan import Layout


def test_twelve_unequal_clusters_meet_three_models() -> None:
    assert len(CHECKS) >= 12
    assert all(set(THREE) <= set(jobs) for jobs in CHECKS.values()) and len(THREE) == 3
    assert {cluster.ranks for cluster in CLUSTERS.values()} == {4, 8}
    for name, cluster in CLUSTERS.items():
        unlike = {(host.ranks, host.kind, host.nics) for host in cluster.hosts}
        assert len(unlike) > 1, name
        assert all(host.kind in SLOWER for host in cluster.hosts)
    kinds = [host.kind for host in CLUSTERS[MIXED].hosts]
    assert kinds == ["fast", "fast", "slow", "slow"]


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("job", THREE)
def test_measured_layouts_are_unlike_and_use_every_rank(name: str, job: str) -> None:
    cluster = CLUSTERS[name]
    batch = JOBS[job].samples * cluster.ranks
    chosen = next(iter(variants(cluster, JOBS[job], batch, _any(cluster.ranks, job), 1).values()))
    found = variants(cluster, JOBS[job], batch, chosen, 99)
    assert len({layout.text() for layout in found.values()}) >= 6
    for layout in found.values():
        assert layout.ranks == list(range(cluster.ranks))
        assert layout.layers == JOBS[job].model.layers
    assert {layout.overlap_optimizer for layout in found.values()} == {False, True}
    assert any(layout.shares for layout in found.values())
    assert any(len(layout.stages) > 1 for layout in found.values())


def _any(ranks: int, job: str) -> Layout:
    from plan_checks.layouts import PLAIN, of

    layers = JOBS[job].model.layers
    return of([list(range(ranks))], [layers], JOBS[job].samples * ranks, 1, **PLAIN)


def test_layers_follow_rates() -> None:
    assert counts_of(8, [1.0, 1.0]) == [4, 4]
    assert counts_of(9, [2.0, 1.0]) == [6, 3]
    assert counts_of(3, [9.0, 1.0, 1.0]) == [1, 1, 1]


def result(chosen: float, other: float, predicted: float, job: str = "wide") -> dict[str, Any]:
    def step(name: str, seconds: float) -> dict[str, Any]:
        return {"job": job, "name": name, "predicted": predicted, "bound": 0.99,
                "measured": {"seconds": seconds}}  # fmt: skip

    call = {"name": "all_reduce", "bytes": 1 << 20, "ranks": [0, 2], "measured": 0.1}
    return {
        "cluster": "2+2",
        "collectives": [call | {"predicted": 0.11}],
        "steps": [
            step("chosen", chosen), step("data parallel", other),
            step("data parallel, divided", 2.0), step("data parallel, overlapped", 1.6),
            step("pipeline over hosts", 1.5),
        ],
    }  # fmt: skip


def of(kind: str, verdicts: list[Verdict]) -> Verdict:
    (found,) = (each for each in verdicts if each.kind == kind)
    return found


def test_the_choice_is_compared_with_the_best_of_all_layouts() -> None:
    good = of("choice", compare.of_cluster(result(1.01, 1.0, 1.0)))
    assert good.met and good.name == "data parallel" and good.ratio == pytest.approx(1.01)
    bad = of("choice", compare.of_cluster(result(1.05, 1.0, 1.0)))
    assert bad.met is False
    own = of("choice", compare.of_cluster(result(0.9, 1.0, 1.0)))
    assert own.name == "chosen" and own.ratio == 1


def test_errors_are_relative_and_summed_up_over_clusters() -> None:
    verdicts = compare.of_cluster(result(1.0, 2.0, 1.0))
    steps = [each.ratio for each in verdicts if each.kind == "step"]
    assert steps == pytest.approx([0, 0.5, 0.5, 0.375, 1 / 3])
    found = compare.summary(verdicts)
    assert of("median step", found).ratio == pytest.approx(0.375)
    assert of("worst step", found).ratio == pytest.approx(0.5)
    assert of("worst step", found).met is False
    middle = of("median collective", found)
    assert middle.ratio == pytest.approx(0.1) and middle.target == "<= 10%"


def test_holmes_overlap_and_the_upper_bound_have_verdicts() -> None:
    verdicts = compare.of_cluster(result(1.0, 3.0, 1.0, job="mixed"))
    assert of("holmes", verdicts).ratio == pytest.approx(2.0)
    assert of("overlap", verdicts).ratio == pytest.approx(1.25)
    assert of("upper bound", verdicts).ratio == pytest.approx(0.99)
    assert of("upper bound", verdicts).met
    assert not [e for e in compare.of_cluster(result(1, 1, 1)) if e.kind == "upper bound"]


def test_a_result_fills_the_page() -> None:
    verdicts = compare.of_cluster(result(1.0, 2.0, 1.0))
    machine = {"cores": 2, "processor": "P", "kernel": "6.1.0", "busy": 0.5}
    facts = {"time": "2030-01-01T00:00:00Z", "commit": "f" * 40, "machine": machine,
             "versions": {}, "clusters": {"2+2": "2 fast over 500 Mbit/s"}}  # fmt: skip
    found = stored.Result("plan-check", "python bench/plan_check.py", facts, [],
                          verdicts + compare.summary(verdicts))  # fmt: skip
    text = plan_blocks.table_of(found)
    assert "| 2+2: 2 fast over 500 Mbit/s | wide |" in text
    assert "| median error of 5 steps | 37.5 % | <= 7 %, **missed** |" in text
    assert "1.25" in text and "commit fffffff" in text


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.needs("namespaces", "torch")
def test_one_cluster_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_check.provenance, "check_build", lambda root: None)
    details = tmp_path / "details.json"
    words = ["--quick", "--output", str(tmp_path), "--details", str(details)]
    assert plan_check.main(words) == 0
    found = stored.load("plan-check", tmp_path)
    assert found.quick and not found.failures
    kinds = {each.kind for each in found.verdicts}
    assert {"collective", "step", "choice", "median step"} <= kinds
    assert all(each.ours > 0 for each in found.verdicts if each.kind == "step")
    steps = json.loads(details.read_text())["2+2"]["steps"]
    assert steps[0]["name"] == "chosen" and len(steps) >= 2
    for each in steps:  # passes sleep, so no step is faster than the bound
        assert each["measured"]["seconds"] > 0.9 * each["bound"]


def test_unknown_clusters_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        plan_check.main(["--clusters", "9+9"])
    assert "expected some of 2+2" in capsys.readouterr().err
