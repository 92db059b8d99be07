"""bench/codecs.py on gradients of the demo's model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hetcomm import _core

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, "-P", *arguments], check=True, timeout=240)


def test_gradients_shrink_and_random_bits_do_not_grow(tmp_path: Path) -> None:
    data, report = tmp_path / "gradients.npz", tmp_path / "report.json"
    run("-m", "hetcomm.demo.gradients", "--steps", "0", "1", "--output", str(data))
    few = ("--elements", "500000", "--seconds", "0")
    run(str(ROOT / "bench/codecs.py"), "--data", str(data), *few, "--output", str(report))
    rows = json.loads(report.read_text())["rows"]
    assert {row["data"] for row in rows} == {"step0", "step1", "random bits"}
    assert {row["codec"] for row in rows} == {*_core.codecs()} - {"none", "auto"}
    least = {"float32": 1.1, "float16": 1.05, "bfloat16": 1.3}
    for row in rows:
        shares = [share for key, share in row.items() if key.endswith("_share_of_copy")]
        assert min(shares) > 0
        if row["codec"] != "lossless":
            assert len(shares) == 4
            assert row["ratio"] > 1.9 and 0 < row["error"] < 1
            continue
        assert len(shares) == 2 and row["error"] == 0
        assert row["ratio"] > (1 if row["data"] == "random bits" else least[row["dtype"]]) - 1e-9
