"""hetcomm's predictions and its planner beside measured steps, on emulated clusters.

    .venv/bin/python bench/plan_check.py             # all clusters: about 28 minutes
    .venv/bin/python bench/plan_check.py --quick     # a try: one cluster, a minute
    .venv/bin/python bench/study.py docs             # pages again, from the stored results

Each cluster of plan_checks/cases.py runs one job under `hetcomm emulate`. Its ranks train small
models by layouts with hetcomm.plan's own runtime. Layers sleep for the time of an emulated device,
while weights, gradients and activations travel for real. The job first measures the layers. By
these times rank 0 plans, and predicts each layout before it runs. The figures go to
bench/results/plan-check.json, those of a try to build/studies.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peers
from plan_checks import compare
from plan_checks.cases import CHECKS, CLUSTERS, QUICK
from studies import provenance, running, stored

from hetcomm.emulate import ClusterError
from hetcomm.emulate import run as run_emulated

STUDY = "plan-check"
TRIES = peers.ROOT / "build" / "studies"
BOUND = 300.0  # seconds of a cluster's job
SPEC = {"repeats": 7, "search": 10.0, "sizes": 3, "variants": 7, "warm": 1, "steps": 4, "turns": 4}
QUICK_SPEC = SPEC | {"repeats": 3, "search": 5.0, "sizes": 1, "variants": 2, "steps": 2, "turns": 1}
SETTINGS = {
    # Gradients of these layers are all alike, so a codec would shrink them beyond measure.
    "HETCOMM_BRIDGE_CODEC": "none",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def measure(name: str, jobs: tuple[str, ...], spec: dict[str, Any]) -> dict[str, Any]:
    """The result of a cluster's job, see plan_checks/job.py."""
    with tempfile.TemporaryDirectory(prefix="hetcomm-plan-check-") as folder:
        given, result = Path(folder) / "spec.json", Path(folder) / "result.json"
        given.write_text(json.dumps({"cluster": name, "jobs": jobs, **spec}))
        command = [sys.executable, "-P", "-m", "plan_checks.job", str(given), str(result)]
        environment = running.environment(SETTINGS)
        logs = Path(folder) / "logs"
        done = run_emulated(CLUSTERS[name], command, env=environment, timeout=BOUND, stdout=logs)
        if not done.ok:
            lines = (logs / f"rank-{done.failed_rank or 0}.log").read_text().strip().splitlines()
            raise RuntimeError(f"{done.verdict()}: {' / '.join(lines[-3:])}")
        found: dict[str, Any] = json.loads(result.read_text())
        return {**found, "congestion": done.congestion}


def conduct(checks: dict[str, tuple[str, ...]], spec: dict[str, Any], words: list[str]) -> Any:
    """Runs the clusters one after another. A failing one ends nothing else."""
    facts = provenance.of_this_run(words, ())
    share = facts["machine"]["busy"]
    if share > provenance.MUCH:
        print(f"other work takes {share:.0%} of the processors; these figures are noise")
    start = time.monotonic()
    failures, verdicts, clusters = [], [], {}
    for name, jobs in checks.items():
        try:
            found = measure(name, jobs, spec)
        except (RuntimeError, ClusterError) as error:
            failures.append(f"{name}: {error}")
            print(failures[-1], flush=True)
            continue
        clusters[name] = found
        of_cluster = compare.of_cluster(found)
        verdicts += of_cluster
        show(of_cluster)
    verdicts += compare.summary(verdicts)
    facts["seconds"] = round(time.monotonic() - start, 1)
    facts["clusters"] = {name: describe(name) for name in clusters}
    quick = " --quick" if "--quick" in words else ""
    command = f"python bench/plan_check.py{quick}"
    return stored.Result(STUDY, command, facts, failures, verdicts), clusters


def describe(name: str) -> str:
    """ "2 fast over 500 Mbit/s; 2 slow over 500 Mbit/s"."""
    return "; ".join(
        f"{host.ranks} {host.kind} over {(host.nics[0].slower or 0) / 1e6:g} Mbit/s"
        for host in CLUSTERS[name].hosts
    )


def show(verdicts: list[compare.Verdict]) -> None:
    for each in verdicts:
        if each.kind in ("collective", "step"):
            error = each.best / each.ours - 1
            print(f"{each.case}: measured {1e3 * each.ours:.1f} ms, predicted "
                  f"{1e3 * each.best:.1f} ms, {error:+.1%}", flush=True)  # fmt: skip
        else:
            print(f"{each.kind} {each.case}: {1e3 * each.ours:.1f} ms beside {each.name} with "
                  f"{1e3 * each.best:.1f} ms, ratio {each.ratio:.3f}", flush=True)  # fmt: skip


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one cluster, and short runs")
    parser.add_argument("--clusters", help=f"out of {', '.join(CHECKS)}; separated by commas")
    parser.add_argument("--output", type=Path, help="another folder")
    parser.add_argument("--details", type=Path, help="everything measured and predicted, as JSON")
    given = parser.parse_args(words)
    checks = dict(QUICK) if given.quick else dict(CHECKS)
    if given.clusters:
        names = given.clusters.split(",")
        if unknown := [name for name in names if name not in CHECKS]:
            parser.error(f"--clusters: expected some of {', '.join(CHECKS)}; got {unknown}")
        checks = {name: CHECKS[name] for name in names}
    stays = not (given.quick or given.clusters or given.output)
    folder = given.output or (stored.FOLDER if stays else TRIES)
    folder.mkdir(exist_ok=True, parents=True)
    provenance.check_build(peers.ROOT)
    result, clusters = conduct(checks, QUICK_SPEC if given.quick else SPEC, words)
    for each in result.verdicts[-4:]:
        print(f"{each.kind}: {each.ratio:.1%} ({each.what}), target {each.target}")
    result.write(folder)
    print(f"Written: {os.path.relpath(folder)}/{STUDY}.json; python bench/study.py docs shows it")
    if given.details:
        given.details.write_text(json.dumps(clusters))
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
