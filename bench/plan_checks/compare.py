"""From predictions beside measurements to verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from studies.model import Verdict

# Targets: the median error and the worst one.
COLLECTIVES, STEPS = (0.10, 0.30), (0.07, 0.20)
BEST = 1.02  # the planner's choice beside the best of all measured layouts
UPPER = 0.98  # a mixed cluster beside the sum of its devices' own rates
CHOSEN, PLAIN, DIVIDED = "chosen", "data parallel", "data parallel, divided"
OVERLAPPED, HOLMES = "data parallel, overlapped", "pipeline over hosts"


def errors(kind: str, rows: Sequence[Verdict], targets: tuple[float, float]) -> list[Verdict]:
    """The median and the worst error of all rows."""
    if not rows:
        return []
    worst = max(rows, key=lambda row: row.ratio)
    found = []
    for name, ratio, target in (
        ("median", statistics.median(row.ratio for row in rows), targets[0]),
        ("worst", worst.ratio, targets[1]),
    ):
        what = f"{name} error of {len(rows)}" if name == "median" else worst.case
        nan = float("nan")
        found.append(
            Verdict(f"{name} {kind}", "all", what, nan, "measured", nan, ratio, f"<= {target:.0%}",
                    ratio <= target)
        )  # fmt: skip
    return found


def row(kind: str, where: str, what: str, measured: float, predicted: float) -> Verdict:
    """A prediction; its ratio is the relative error."""
    error = abs(predicted / measured - 1)
    return Verdict(kind, where, what, measured, "predicted", predicted, error, "-", None)


def beside(kind: str, where: str, what: str, ours: float, name: str, other: float) -> Verdict:
    """Seconds beside others; the ratio is how many times as fast ours are."""
    return Verdict(kind, where, what, ours, name, other, other / ours, "-", None)


def of_cluster(found: dict[str, Any]) -> list[Verdict]:
    """The verdicts of one cluster's result, see job.py."""
    where = found["cluster"]
    verdicts = [
        row("collective", where, f"{each['name']} {each['bytes'] >> 10} KiB of "
            f"{len(each['ranks'])} ranks", each["measured"], each["predicted"])
        for each in found["collectives"]
    ]  # fmt: skip
    for job in dict.fromkeys(each["job"] for each in found["steps"]):
        steps = {each["name"]: each for each in found["steps"] if each["job"] == job}
        verdicts += _of_job(where, job, steps)
    return verdicts


def _of_job(where: str, job: str, steps: dict[str, dict[str, Any]]) -> list[Verdict]:
    seconds = {name: each["measured"]["seconds"] for name, each in steps.items()}
    verdicts = [
        row("step", where, f"{job}: {name}", seconds[name], each["predicted"])
        for name, each in steps.items()
    ]
    chosen, best = seconds[CHOSEN], min(seconds, key=lambda name: seconds[name])
    ratio = chosen / seconds[best]
    verdicts.append(
        Verdict("choice", where, job, chosen, best, seconds[best], ratio, f"<= {BEST}",
                ratio <= BEST)
    )  # fmt: skip
    bound = steps[CHOSEN]["bound"]
    if job == "mixed":
        share = bound / chosen
        verdicts.append(
            Verdict("upper bound", where, job, chosen, "the devices' own rates", bound, share,
                    f">= {UPPER}", share >= UPPER)
        )  # fmt: skip
    for ours, other, kind in ((HOLMES, PLAIN, "holmes"), (OVERLAPPED, DIVIDED, "overlap")):
        if ours in seconds and other in seconds:
            verdicts.append(beside(kind, where, job, seconds[ours], other, seconds[other]))
    return verdicts


def summary(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The errors over all clusters."""
    every = list(verdicts)
    collectives = [each for each in every if each.kind == "collective"]
    steps = [each for each in every if each.kind == "step"]
    return errors("collective", collectives, COLLECTIVES) + errors("step", steps, STEPS)
