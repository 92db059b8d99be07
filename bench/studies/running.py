"""Runs the jobs of a study one after another, with plain TCP before and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import peers

from hetcomm.emulate import run as run_emulated
from hetcomm.processes import end
from studies import provenance, tuned
from studies.model import Layout, Outcome, Plan, Run

HERE = Path(__file__).resolve().parent
BOUND, GRACE = 180.0, 30.0  # seconds of a job, and for it to end its children
QUICK_SECONDS, QUICK_LARGEST = 0.03, 1 << 20


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of children: they find these modules, and the hetcomm of this tree."""
    paths = f"{HERE.parent}{os.pathsep}{peers.ROOT}"
    return {**os.environ, "PYTHONPATH": paths, **(more or {})}


def sizes_of(run: Run, plan: Plan) -> tuple[int, ...]:
    if not plan.quick:
        return run.sizes
    return tuple(size for size in run.sizes if size <= QUICK_LARGEST) or (min(run.sizes),)


def measure(run: Run, plan: Plan, say: Callable[[str], None]) -> list[Outcome]:
    """Runs a job for each installed opponent. A failing job is recorded and ends nothing else."""
    opponents = [each for each in run.opponents if each not in peers.NAMES or each in plan.peers]
    outcomes = []
    predicting = profile(run, plan, say)
    before = link(run.layout)
    for opponent in opponents or [""] * (not run.opponents):
        say(f"{run.where}: {run.ours} {('beside ' + opponent) if opponent else ''}")
        outcomes.append(_job(run, opponent, plan, predicting))
    after = link(run.layout) if before else None
    for outcome in outcomes:
        outcome.link = _better(before, after)
    return outcomes


def backends_of(run: Run, opponent: str) -> tuple[str, ...]:
    if opponent in peers.NAMES:
        return (run.ours, "mpi")
    if opponent == "gloo":
        return (run.ours, "torch:hetcomm", "gloo")
    return (run.ours,)


def profile(run: Run, plan: Plan, say: Callable[[str], None]) -> dict[str, str]:
    """HETCOMM_PROFILE for hetcomm's predictions. Makes the profile unless there is a fresh one.
    Empty for accelerators, which tune does not measure."""
    layout, largest = run.layout, max(sizes_of(run, plan))
    if layout.vendors != ("cpu",):
        return {}
    file = tuned.place_of(layout, largest)
    if not tuned.is_fresh(file):
        say(f"{layout.describe()}: tuning")
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="hetcomm-tune-") as folder:
            spec = Path(folder) / "spec.json"
            spec.write_text(json.dumps(tuned.spec_of(layout, largest)))
            command = [sys.executable, "-P", "-m", "studies.tuned", str(spec), str(file)]
            why = supervised(command, environment())
        if why:
            raise RuntimeError(f"hetcomm tune: {why}")
    return {"HETCOMM_PROFILE": str(file)}


def _job(run: Run, opponent: str, plan: Plan, more: dict[str, str]) -> Outcome:
    layout, mode, python = run.layout, run.mode, sys.executable
    if opponent in peers.NAMES:
        python = peers.python_of(opponent)
        more = more | peers.settings(opponent, sum(layout.hosts), len(layout.hosts))
    spec = {
        "layout": asdict(layout),
        "mode": asdict(mode),
        "collectives": run.collectives,
        "backends": backends_of(run, opponent),
        "sizes": sizes_of(run, plan),
        "seconds": QUICK_SECONDS if plan.quick else run.seconds,
        "calls": None if plan.quick else run.calls,
    }
    with tempfile.TemporaryDirectory(prefix="hetcomm-study-") as folder:
        spec_file, result = Path(folder) / "spec.json", Path(folder) / "result.json"
        spec_file.write_text(json.dumps(spec))
        command = [python, "-P", "-m", "studies.job", str(spec_file), str(result)]
        why = supervised(command, environment(more))
        found = json.loads(result.read_text()) if result.exists() else {"facts": {}, "rows": []}
    return Outcome(
        layout.describe(),
        opponent,
        found["rows"],
        found["facts"],
        failed=why,
        mode=mode.describe(),
        settings=provenance.without_paths(more),
    )


def supervised(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Runs a command. Returns the reason of its failure, "" after success."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
        )
        try:
            status = process.wait(BOUND)
        except subprocess.TimeoutExpired:
            return f"it took more than {BOUND:g} s"
        finally:
            end([process], GRACE)
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    return "" if status == 0 else f"status {status}: {' / '.join(lines[-3:])}"


def on_cluster(layout: Layout, module: str, *words: str) -> dict[str, Any]:
    """Runs `module RESULT WORDS...` on every rank of an emulated cluster. Returns the JSON in
    RESULT, with the "congestion" control of the hosts."""
    cluster = layout.cluster()
    assert cluster is not None
    with tempfile.TemporaryDirectory(prefix="hetcomm-study-") as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-P", "-m", module, str(result), *words]
        done = run_emulated(cluster, command, env=environment(), timeout=BOUND, stdout=Path(folder))
        if not done.ok:
            raise RuntimeError(f"{module} {' '.join(words)} on {layout.ranks}: {done.verdict()}")
        return {**json.loads(result.read_text()), "congestion": done.congestion}


def link(layout: Layout) -> dict[str, Any] | None:
    """The measurements of link.py; None on one host."""
    cluster = layout.cluster()
    if cluster is None:
        return None
    rates = enumerate(layout.rates_by_host[0])
    words = (f"{cluster.address(0, nic)}={rate or 0}" for nic, rate in rates)
    return on_cluster(layout, "studies.link", *words)


def _better(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any] | None:
    """The faster rates: other work may have lowered one measurement."""
    if before is None or after is None:
        return None
    rates = zip(before["bytes_per_second"], after["bytes_per_second"], strict=True)
    return {
        "bytes_per_second": [max(pair) for pair in rates],
        "round_trip": min(before["round_trip"], after["round_trip"]),
        "congestion": after["congestion"],
        "measured": [before, after],
    }
