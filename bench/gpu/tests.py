"""Runs pytest on some tests. Each result is stored at once, so a part that ends at its bound keeps
its results. Most of a test's time is the start of processes, so several tests run at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from report import Report, parser

ROOT = Path(__file__).resolve().parents[2]
PYTEST = Path(__file__).with_name("recording_pytest.py")
MOST_WORKERS = 4  # processes on one GPU take turns


def main() -> None:
    parsed = parser()
    parsed.add_argument("--paths", nargs="+", required=True, help="below tests/")
    arguments = parsed.parse_args()
    report = Report(arguments.folder)
    record = arguments.folder / "tests.jsonl"
    paths = [str(ROOT / "tests" / path) for path in arguments.paths]
    if absent := [path for path in paths if not Path(path).exists()]:
        raise SystemExit(f"no such tests: {', '.join(absent)}")
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)) // 2)
    parallel = ["-n", str(workers)] if workers > 1 and find_spec("xdist") else []
    # Not from the root, where `import hetcomm` would find the sources without what was built.
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(PYTEST), str(record), "-q", "-p", "no:cacheprovider",
             "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), *parallel, *paths],
            cwd=arguments.folder, timeout=arguments.bound, check=False,
        )  # fmt: skip
        ending = "" if done.returncode in (0, 1) else f"pytest ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        ending = f"pytest was ended after {arguments.bound:.0f} s, before its end"
    rows = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    counts = Counter(row["outcome"] for row in rows)
    report.fact("counts", dict(counts))
    report.fact("skipped", sorted({row["reason"] for row in rows if row["outcome"] == "skipped"}))
    for row in rows:
        if row["outcome"] == "failed":
            report.failure(f"{row['test']}: {row['reason']}")
    if ending:
        report.failure(f"{ending}; {dict(counts)}")
    elif not counts["passed"] and not counts["failed"]:
        report.skip("; ".join(report.content["facts"]["skipped"]) or "no test was found")


if __name__ == "__main__":
    main()
