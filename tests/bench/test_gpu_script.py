"""bench/gpu.sh on hostile emulated devices: every part without a need for a GPU runs, a failing
part loses only its own figures, and the report says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1700),
    pytest.mark.needs("emulated vendors"),
]


def run(folder: Path, *options: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    """The script's exit code, its report with the parts by name, and its output."""
    output = folder / "report.json"
    done = subprocess.run(
        [ROOT / "bench" / "gpu.sh", "--emulated", "--smallest", "--installed", "--work",
         str(folder / "work"), "--output", str(output), "--seconds", "1500", *options],
        env=os.environ | {"PYTHON": sys.executable} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1600, check=False,
    )  # fmt: skip
    report = json.loads(output.read_text())
    report["parts"] = {part["name"]: part for part in report["parts"]}
    return done.returncode, report, done.stdout


def test_every_part_runs_without_a_gpu(tmp_path: Path) -> None:
    code, report, printed = run(tmp_path, "--skip", "tests_core")
    parts = report["parts"]
    failed = {name: part for name, part in parts.items() if part["status"] == "failed"}
    assert not failed and code == 0, json.dumps(failed, indent=1)
    ran = {name for name, part in parts.items() if part["status"] == "passed"}
    assert ran >= {"facts", "loads", "device", "staging", "kernels"}
    of_torch = {"suspects", "results", "nccl_path", "overlap", "training"}
    assert of_torch <= ran or "torch" in report["facts"]["lacking"]
    order = [name for name in parts if name in ran]
    assert order[:5] == ["facts", "loads", "suspects", "results", "nccl_path"]
    outcomes = parts["suspects"]["facts"]["outcomes"]
    assert len(outcomes) >= 13 and set(outcomes.values()) == {"held"}, outcomes
    loaded = parts["loads"]["facts"]["loaded"]
    assert "emulated" in loaded["NCCL"]["answer"] and loaded["UCX with CUDA"]["files"]
    assert parts["results"]["facts"]["cases"]["GPU and CPU"] > 50
    assert report["first_failure"] is None
    for name in ("cupy", "tests_gpu"):
        assert parts[name]["reason"] == "needs a real GPU"
    figures = {figure["name"]: figure for figure in parts["staging"]["figures"]}
    staged = figures["GPU and CPU, TCP: staged 0 to 1"]
    assert "GPU and GPU, shared memory: staged both" in figures
    assert figures["GPU and GPU, direct: direct 0 to 1"]["value"] > 0
    assert staged["value"] > 0 and staged["peer_value"] > 0 and staged["met"] is None
    rates = {figure["name"]: figure for figure in parts["kernels"]["figures"]}
    for codec in ("int8", "int4", "fp8_e4m3", "bf16"):
        for name in ("encode", "encode with residual", "decode and add"):
            rate = rates[f"{name} {codec}, float32"]
            assert rate["value"] > 0 and rate["peer"] == "copy of device memory"
            assert rate["met"] is None if "met" in rate else True
    assert report["emulated"] and report["date"] and report["facts"]["machine"]["cores"] > 0
    assert f"{len(ran)} passed, 0 failed" in printed


def test_two_ranks_answer_the_same_questions(tmp_path: Path) -> None:
    code, report, _ = run(tmp_path, "--two-ranks")
    parts = report["parts"]
    failed = {name: part for name, part in parts.items() if part["status"] == "failed"}
    assert not failed and code == 0, json.dumps(failed, indent=1)
    assert report["two_ranks"] and "two ranks" in parts["facts"]["facts"]
    outcomes = parts["suspects"]["facts"]["outcomes"]
    assert len(outcomes) >= 13 and set(outcomes.values()) == {"held"}, outcomes
    figures = {figure["name"]: figure for figure in parts["training"]["figures"]}
    assert figures["two on the GPU: loss"]["peer"] == "gloo"
    assert parts["results"]["facts"]["cases"]["two ranks on the GPU"] > 50
    assert any("2 ranks" in figure["name"] for figure in parts["nccl_path"]["figures"])


def suspect(folder: Path, name: str, *options: str, **environment: str) -> dict[str, Any]:
    """The report of one suspect."""
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "gpu" / "suspects.py", "--folder", folder,
         "--emulated", "--suspect", name, *options],
        cwd=folder, env=os.environ | environment, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_a_suspect_that_fails_says_what_to_do(tmp_path: Path) -> None:
    name = "compilation and loading beside a pending call"
    found = suspect(tmp_path, name, HETCOMM_KERNELS="0")
    assert found["facts"]["outcomes"] == {name: "failed"}
    assert "HETCOMM_KERNELS=0" in found["failures"][0] and "compile" in found["remedies"][0]


def test_a_suspect_that_hangs_is_ended(tmp_path: Path) -> None:
    name = "streams share one queue"
    found = suspect(
        tmp_path, name, "--two-ranks", "--bound", "12", HETCOMM_EMULATED_FAULT="init_hang"
    )
    assert found["facts"]["outcomes"] == {name: "failed"}
    assert "did not end within" in found["failures"][0]
    assert "docs/devices.md" in found["remedies"][0]


def test_the_first_failure_and_its_remedy_are_named(tmp_path: Path) -> None:
    code, report, printed = run(tmp_path, "--only", "loads,device", HETCOMM_KERNELS="0")
    assert code == 1 and report["parts"]["device"]["status"] == "passed"
    first = report["first_failure"]
    assert first["part"] == "loads" and "kernels" in first["reason"]
    assert "HETCOMM_KERNELS" in first["do"] and "--only loads" in first["do"]
    assert f"Failed first: loads: {first['reason']}" in printed and first["do"] in printed


def test_a_run_that_is_cut_tells_how_far_it_came(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    process = subprocess.Popen(
        [ROOT / "bench" / "gpu.sh", "--emulated", "--smallest", "--installed", "--work",
         tmp_path / "work", "--output", output, "--only", "loads,suspects"],
        env=os.environ | {"PYTHON": sys.executable}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 600
    try:
        while True:
            assert time.monotonic() < end and process.poll() is None
            parts = json.loads(output.read_text())["parts"] if output.exists() else []
            running = [part for part in parts if part["status"] == "running"]
            if running and running[0]["name"] == "suspects" and running[0].get("facts"):
                break
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait(30)
    parts = {part["name"]: part for part in json.loads(output.read_text())["parts"]}
    assert parts["loads"]["status"] == "passed"
    assert "held" in parts["suspects"]["facts"]["outcomes"].values()


def test_a_failing_part_loses_only_its_figures(tmp_path: Path) -> None:
    code, report, printed = run(
        tmp_path, "--only", "device,staging", HETCOMM_EMULATED_FAULT="old_runtime"
    )
    parts = report["parts"]
    assert code == 1 and "2 failed" in printed
    for name in ("device", "staging"):
        assert parts[name]["status"] == "failed" and "CUDA 10.2" in parts[name]["reason"]


def test_a_hanging_part_is_ended(tmp_path: Path) -> None:
    _, report, _ = run(
        tmp_path, "--two-ranks", "--only", "loads,nccl_path", "--seconds", "100",
        HETCOMM_EMULATED_FAULT="init_hang",
    )  # fmt: skip
    parts = report["parts"]
    assert parts["loads"]["status"] == "passed"
    assert parts["nccl_path"]["status"] == "failed", parts["nccl_path"]
    assert report["seconds"] < 300
