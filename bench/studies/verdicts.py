"""Figures of a run beside the targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import geometric_mean, median
from typing import Any

from hetcomm import _core
from studies.bound import capacities, least_seconds
from studies.model import FASTER, MPIS, Outcome, Run, Target, Verdict

Case = tuple[str, int]  # collective and bytes
Pair = tuple[float, float, str]  # seconds of ours and of the other, and its name
MEDIAN_ERROR, WORST_ERROR = 0.15, 0.40
MOST_SCRATCH = 64 << 20


def of_run(run: Run, outcomes: Sequence[Outcome]) -> list[Verdict]:
    found: list[Verdict] = []
    for target in run.targets:
        found += _of_target(run, target, outcomes)
    for kind in ("mpi", "gloo"):  # cases without target are shown too
        own = [target for target in run.targets if target.kind == kind]
        if all(target.sizes for target in own):
            covered = {size for target in own for size in target.sizes}
            rest = tuple(sorted({row["bytes"] for each in outcomes for row in each.rows} - covered))
            if rest:
                ours = own[0].ours if own else run.ours
                found += _of_target(run, Target(kind, math.nan, rest, ours=ours), outcomes)
    return found + _bytes_of(run, outcomes)


def _bytes_of(run: Run, outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Bytes that NICs count over the bridge, for an all_reduce of the largest size."""
    sent: dict[str, float] = {}
    rows = [
        (row["library"] if row["backend"] != run.ours else run.ours, row)
        for each in outcomes
        for row in each.rows
        if row["collective"] == "all_reduce" and row["legs"] and row["legs"]["bridge_bytes"]
    ]
    largest = max((row["bytes"] for _, row in rows), default=0)
    for name, row in rows:
        if row["bytes"] == largest:
            sent[name] = row["legs"]["bridge_bytes"] / largest
    if run.ours not in sent:
        return []
    ours, nan = sent.pop(run.ours), math.nan
    others = ", ".join(f"{name.split(' of ')[0]} {share:.3g}" for name, share in sent.items())
    size = _core.format_bytes(largest)
    what = f"bytes sent by the busiest host, by {size}"
    return [Verdict("bytes", run.where, what, nan, others or "-", nan, ours, "-", None)]


def _of_target(run: Run, target: Target, outcomes: Sequence[Outcome]) -> list[Verdict]:
    kind, where = target.kind, run.where
    pairs = {
        case: pair
        for case, pair in pairs_of(run, target, outcomes).items()
        if (not target.sizes or case[1] in target.sizes)
        and (not target.collectives or case[0] in target.collectives)
    }
    if not pairs:
        if math.isnan(target.value):
            return []
        what, nan = f"{kind}: not measured", math.nan
        return [Verdict(kind, where, what, nan, "-", nan, nan, text_of(target), None)]
    if kind == "mpi, mean":
        mean = geometric_mean([other / ours for ours, other, _ in pairs.values()])
        what, nan, met = f"geometric mean of {len(pairs)}", math.nan, mean >= target.value
        return [Verdict(kind, where, what, nan, "better MPI", nan, mean, text_of(target), met)]
    found = []
    for (collective, size), (ours, other, name) in pairs.items():
        ratio = other / ours if kind in FASTER else ours / other
        what = f"{collective} {_core.format_bytes(size)}"
        met = met_by(target, ratio)
        found.append(Verdict(kind, where, what, ours, name, other, ratio, text_of(target), met))
    return found


def text_of(target: Target) -> str:
    if math.isnan(target.value):
        return "-"
    return f"{'>=' if target.kind in FASTER else '<='} {target.value:g}"


def met_by(target: Target, ratio: float) -> bool | None:
    if math.isnan(target.value):
        return None
    return ratio >= target.value if target.kind in FASTER else ratio <= target.value


def pairs_of(run: Run, target: Target, outcomes: Sequence[Outcome]) -> dict[Case, Pair]:
    """By case, the pair of the job with the worst ratio for hetcomm."""
    if target.kind.startswith("mpi"):
        jobs = [_pairs(each, target.ours, "mpi") for each in outcomes if each.opponent in MPIS]
        found: dict[Case, Pair] = {}
        for case in dict.fromkeys(case for job in jobs for case in job):
            if all(case in job for job in jobs):
                found[case] = min((job[case] for job in jobs), key=lambda pair: pair[1] / pair[0])
        return found
    if target.kind == "gloo":
        jobs = [_pairs(each, target.ours, "gloo") for each in outcomes if each.opponent == "gloo"]
        return jobs[0] if jobs else {}
    return _beside_the_link(run, target, outcomes)


def _pairs(outcome: Outcome, ours: str, other: str) -> dict[Case, Pair]:
    by_name: dict[str, dict[Case, dict[str, Any]]] = {}
    for row in outcome.rows:
        by_name.setdefault(row["backend"], {})[row["collective"], row["bytes"]] = row
    mine, theirs = by_name.get(ours, {}), by_name.get(other, {})
    return {
        case: (mine[case]["median"], theirs[case]["median"], theirs[case]["library"])
        for case in mine
        if case in theirs
    }


def _beside_the_link(run: Run, target: Target, outcomes: Sequence[Outcome]) -> dict[Case, Pair]:
    """Medians over all jobs, because the link is the same in each."""
    times: dict[Case, list[float]] = {}
    links = [each.link for each in outcomes if each.link is not None]
    for outcome in outcomes:
        for row in outcome.rows:
            if row["backend"] == target.ours:
                times.setdefault((row["collective"], row["bytes"]), []).append(row["median"])
    if not links:
        return {}
    found = {}
    for case, seconds in times.items():
        if target.kind == "round trips":
            found[case] = (median(seconds), links[0]["round_trip"], "TCP ping-pong")
        elif target.kind == "bound":
            rates = capacities(run.layout, links[0])
            limit = least_seconds(*case, run.layout.hosts, rates)
            found[case] = (median(seconds), limit, "wire bound")
    return found


def of_prediction(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Errors of predicted times, over all cases of the array API except isolated ones: no plan
    knows the caches, or how long ranks have waited."""
    back_to_back = [each for each in outcomes if "isolated" not in each.mode]
    found = [
        (row["median"], row["predicted"]["total"], case)
        for row, case in _ours(back_to_back)
        if row["predicted"] and row["predicted"]["total"] > 0
    ]
    if not found:
        return []
    errors = [abs(measured / predicted - 1) for measured, predicted, _ in found]
    measured, predicted, case = max(found, key=lambda each: abs(each[0] / each[1] - 1))
    middle, worst, nan = median(errors), max(errors), math.nan
    name = "of the prediction"
    return [
        Verdict(
            "prediction", "", f"error of {len(found)} predictions, median", nan, name, nan, middle,
            f"<= {MEDIAN_ERROR}", middle <= MEDIAN_ERROR,
        ),
        Verdict(
            "worst prediction", "", f"the worst: {case}", measured, "predicted", predicted, worst,
            f"<= {WORST_ERROR}", worst <= WORST_ERROR,
        ),
    ]  # fmt: skip


def of_scratch(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """The largest scratch memory of a rank, by its plans."""
    found = [
        (row["predicted"]["scratch_bytes"], case) for row, case in _ours(outcomes)
        if row["predicted"] and "scratch_bytes" in row["predicted"]
    ]  # fmt: skip
    if not found:
        return []
    most, case = max(found)
    what = f"scratch memory of a rank, most ({case}): {_core.format_bytes(int(most))}"
    nan, ratio = math.nan, most / MOST_SCRATCH
    return [Verdict("scratch", "", what, nan, "64 MiB", nan, ratio, "<= 1", ratio <= 1)]


def _ours(outcomes: Sequence[Outcome]) -> Iterator[tuple[dict[str, Any], str]]:
    for outcome in outcomes:
        for row in outcome.rows:
            if row["backend"] == "hetcomm":
                size = _core.format_bytes(row["bytes"])
                yield row, f"{outcome.where}, {row['collective']} {size}"
