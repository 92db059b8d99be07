"""Seconds that hetcomm plan searches on large clusters of two and three kinds of devices.

    .venv/bin/python bench/plan_search.py

The model is GPT-Neo 2.7B with a batch of 2048. The devices' profiles follow data sheets: no machine
measured them. Seconds are of the process's processor time, on one core, because other work on the
machine does not change them. A search ends when no layout can be faster by the tolerance, or at the
limit.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

from plan_inputs import DEVICES, cluster_of, gpt_neo, profile_of

from hetcomm.plan.search.propose import Limits, Proposal, propose

BATCH = 2048


@dataclass(frozen=True)
class Case:
    """target: seconds."""

    name: str
    ranks: dict[str, int]
    target: float


CASES = (
    Case("128 A100 + 384 V100", {"A100": 128, "V100": 384}, 5),
    Case("256 A100 + 256 V100 + 256 H100", {"A100": 256, "V100": 256, "H100": 256}, 30),
)


def measure(case: Case, tolerance: float, seconds: float) -> dict[str, float | str | bool]:
    cluster, model = cluster_of(case.ranks), gpt_neo()
    profile = profile_of(model, DEVICES)
    wall, start = time.monotonic(), time.process_time()
    limits = Limits(tolerance=tolerance, seconds=seconds)
    found = propose(cluster, model, profile, BATCH, limits)
    taken = time.process_time() - start
    return {"case": case.name, "seconds": taken, "wall": time.monotonic() - wall} | facts(
        found, case
    )


def facts(proposal: Proposal, case: Case) -> dict[str, float | str | bool]:
    found = proposal.found
    return {
        "target": case.target,
        "step": proposal.best.prediction.seconds,
        "gap": found.gap,
        "cut": found.cut,
        "predicted": found.priced,
        "nodes": found.opened,
        "share_of_upper_bound": proposal.samples_per_second(proposal.best) / proposal.upper_bound,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--limit", type=float, help="seconds of a search; default: the target")
    parser.add_argument("--report", type=Path, help="figures as JSON")
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        row = measure(case, arguments.tolerance, arguments.limit or case.target)
        rows.append(row)
        ended = "cut by the limit" if row["cut"] else "ended by itself"
        print(
            f"{row['case']}: {row['seconds']:.1f} s of a core ({row['wall']:.1f} s), {ended}; "
            f"target {case.target:g} s; step {row['step']:.3f} s, another layout at most "
            f"{row['gap']:.1%} faster; {row['nodes']} nodes, {row['predicted']} predictions"
        )
    if arguments.report:
        arguments.report.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
