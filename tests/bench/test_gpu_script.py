"""bench/gpu.sh on the emulated vendor: every part without a need for a GPU runs, and a failing part
loses only its own figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.needs("emulated vendors"),
]


def run(folder: Path, *options: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    """The script's exit code, its report with the parts by name, and its output."""
    output = folder / "report.json"
    done = subprocess.run(
        [ROOT / "bench" / "gpu.sh", "--emulated", "--smallest", "--installed", "--work",
         str(folder / "work"), "--output", str(output), "--seconds", "560", *options],
        env=os.environ | {"PYTHON": sys.executable} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=580, check=False,
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
    assert ran >= {"facts", "device", "staging", "kernels"}
    assert {"nccl_path", "overlap", "training"} <= ran or "torch" in report["facts"]["lacking"]
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
        tmp_path, "--only", "nccl_path,device", "--seconds", "60",
        HETCOMM_EMULATED_FAULT="init_hang",
    )  # fmt: skip
    parts = report["parts"]
    assert parts["device"]["status"] == "passed"
    assert parts["nccl_path"]["status"] == "failed", parts["nccl_path"]
    assert report["seconds"] < 120
