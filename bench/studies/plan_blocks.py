"""The table of docs/planning.md, of what bench/plan_check.py stored."""

from __future__ import annotations

import statistics

from studies import codec_blocks, stored
from studies.model import Verdict
from studies.stored import Result, Results
from studies.tables import table


def checked(results: Results) -> str:
    """The results have no study of this name: the check is a script of its own."""
    return table_of(stored.load("plan-check"))


def table_of(result: Result) -> str:
    """The targets, then a row for each cluster and model."""
    return "\n\n".join([_targets(result), _clusters(result), codec_blocks.origin(result)])


def _targets(result: Result) -> str:
    rows = []
    for kind, plural in (("collective", "collectives"), ("step", "steps")):
        count = len(result.of(kind))
        for each in result.of(f"median {kind}"):
            rows.append([f"median error of {count} {plural}", percent(each.ratio), _aim(each)])
        for each in result.of(f"worst {kind}"):
            rows.append([f"worst error: {each.what}", percent(each.ratio), _aim(each)])
    choices = result.of("choice")
    if choices:
        worst = max(choices, key=lambda each: each.ratio)
        good = sum(bool(each.met) for each in choices)
        shown = f"{good} of {len(choices)}; worst {worst.ratio:.3f} ({worst.case})"
        aim = "all, met" if good == len(choices) else "all, **missed**"
        rows.append(["choices within 2 % of the best measured layout", shown, aim])
    for each in result.of("upper bound"):
        rows.append([f"{each.where}: share of the upper bound", percent(each.ratio), _aim(each)])
    for kind, what in (
        ("holmes", "pipeline between hosts, times as fast as plain data parallelism"),
        ("overlap", "overlapped distributed optimizer, times as fast as not overlapped"),
    ):
        found = [each.ratio for each in result.of(kind)]
        if found:
            shown = f"{min(found):.2f} to {max(found):.2f}, median {statistics.median(found):.2f}"
            rows.append([what, shown, "-"])
    return table(["what", "found", "target"], rows)


def _clusters(result: Result) -> str:
    rows = []
    for choice in result.of("choice"):
        steps = [
            each
            for each in result.of("step", where=choice.where)
            if each.what.startswith(f"{choice.what}: ")
        ]
        own = next(each for each in steps if each.what.endswith(": chosen"))
        errors = [each.ratio for each in steps]
        rows.append(
            [f"{choice.where}: {result.facts['clusters'][choice.where]}", choice.what,
             milliseconds(own.best), milliseconds(own.ours), str(len(steps)),
             f"{percent(statistics.median(errors))}, {percent(max(errors))}", choice.name,
             milliseconds(choice.best), f"{choice.ratio:.3f}"]
        )  # fmt: skip
    heads = ["cluster", "model", "choice predicted", "measured", "layouts", "errors: median, worst",
             "best measured", "takes", "choice by best"]  # fmt: skip
    return table(heads, rows)


def _aim(verdict: Verdict) -> str:
    target = verdict.target
    if "%" not in target:
        sign, _, number = target.partition(" ")
        target = f"{sign} {float(number):.0%}"
    return f"{target.replace('%', ' %')}, {'met' if verdict.met else '**missed**'}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
