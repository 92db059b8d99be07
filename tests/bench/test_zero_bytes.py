"""bench/zero_bytes.py: compressed fully_shard sends a quarter of the bytes between hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hetcomm.emulate import load, run

ROOT = Path(__file__).parents[2]


@pytest.mark.needs("namespaces")
def test_a_step_sends_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    script = [sys.executable, "-P", str(ROOT / "bench/zero_bytes.py")]
    few = ["--layers", "3", "--steps", "2", "--report", str(report)]
    cluster = load(ROOT / "examples/clusters/four-hosts.toml")
    result = run(cluster, [*script, *few], timeout=200)
    assert result.ok, result.verdict()
    found = json.loads(report.read_text())
    for share in found["ZeRO-3"]["share"]:
        assert 2.99 < share < 3.15, found
    for share in found["ZeRO++"]["share"]:
        assert 0.76 < share < 0.85, found
    assert found["ratio"] > 3.7, found
