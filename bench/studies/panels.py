"""The content of a picture: times divided by the limit, or by the best peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from studies.model import FASTER, MPIS, Outcome, Verdict, what_of
from studies.stored import Result, in_words

REFERENCES = {
    "bound": "divided by the least that plain TCP needs",
    "mpi": "divided by the better MPI's: left of 1 hetcomm is faster",
}


@dataclass(frozen=True)
class Line:
    """One case of a panel."""

    label: str
    marks: dict[str, float]  # by backend: time divided by the reference
    target: float | None = None  # the greatest ratio of hetcomm
    met: bool | None = None


@dataclass(frozen=True)
class Panel:
    """The cases of one layout."""

    title: str
    reference: str  # the divisor of times, in words
    lines: list[Line]


def panels_of(result: Result) -> list[Panel]:
    """Empty if no limit or peer was measured."""
    if result.study in SPECIAL:
        return [panel for panel in SPECIAL[result.study](result) if panel.lines]
    found = []
    for where in dict.fromkeys(outcome.where for outcome in result.outcomes):
        for kind, reference in REFERENCES.items():
            verdicts = result.of(kind, where=where)
            if verdicts:
                jobs = [each for each in result.outcomes if each.where == where]
                lines = [_line(each, jobs) for each in verdicts]
                order = list(dict.fromkeys(what_of(row) for job in jobs for row in job.rows))
                lines.sort(key=lambda line: order.index(line.label))
                found.append(Panel(in_words(where), reference, lines))
                break
    return found


def _line(verdict: Verdict, jobs: list[Outcome]) -> Line:
    """Every job measures hetcomm too, so a peer's time is divided by hetcomm's of the same job."""
    ours = _ours(verdict)
    marks: dict[str, float] = {"hetcomm": ours}
    for job in jobs:
        times = {row["backend"]: row["median"] for row in job.rows if what_of(row) == verdict.what}
        theirs = times.get("mpi" if job.opponent in MPIS else job.opponent)
        if theirs is None:
            continue
        if verdict.kind == "bound":
            marks[job.opponent] = theirs / verdict.best
        else:
            marks[job.opponent] = theirs / times["hetcomm"] * ours
    return Line(verdict.what, marks, target_of(verdict), verdict.met)


def _ours(verdict: Verdict) -> float:
    return 1 / verdict.ratio if verdict.kind in FASTER else verdict.ratio


def target_of(verdict: Verdict) -> float | None:
    """The greatest ratio of hetcomm to the reference; None without a target."""
    if verdict.met is None:
        return None
    value = float(verdict.target.split()[-1])
    return 1 / value if verdict.kind in FASTER else value


def _start_up(result: Result) -> list[Panel]:
    lines, bars = [], result.bars
    for ours, label, peers in (
        ("hetcomm", "array API", {name: name for name in MPIS}),
        ("torch:hetcomm", "through torch", {"torch:gloo": "gloo"}),
    ):
        for what in ("from exec", "after imports"):
            beside = {
                shown: bars[f"{name}: {what}"]
                for name, shown in peers.items()
                if f"{name}: {what}" in bars
            }
            if beside:
                best = min(beside.values())
                marks = {name: seconds / best for name, seconds in beside.items()}
                ratio = bars[f"{ours}: {what}"] / best
                lines.append(Line(f"{label}, {what}", {"hetcomm": ratio, **marks}))
    return [Panel("2 ranks, first all_reduce", "divided by the better MPI's, or gloo's", lines)]


def _overlap(result: Result) -> list[Panel]:
    """Times divided by computing alone, of the same backend."""
    lines = []
    for verdict in result.of("longer part"):
        backend = verdict.what.rpartition(" ")[2]
        if backend != "hetcomm":
            continue
        marks = {
            name: result.bars[f"{verdict.where}, DDP through {name}: step"]
            / result.bars[f"{verdict.where}, DDP through {name}: compute"]
            for name in ("hetcomm", "gloo")
        }
        lines.append(Line(in_words(verdict.where), marks, target_of(verdict), verdict.met))
    return [Panel("a step of DDP", "divided by that of computing alone", lines)]


def _codec_rates(result: Result) -> list[Panel]:
    lines = [
        Line(each.what.replace(" float32,", ""), {"hetcomm": each.ratio})
        for each in result.of("copies")
        if " float32," in each.what
    ]
    return [Panel("float32 gradients on one core", "divided by that of a copy", lines)]


def _codec_links(result: Result) -> list[Panel]:
    panels = []
    for where in dict.fromkeys(each.where for each in result.of("codec")):
        lines = [
            Line(each.what, {"hetcomm": _ours(each)}) for each in result.of("codec", where=where)
        ]
        panels.append(Panel(in_words(where), "divided by that without a codec", lines))
    return panels


def _scale(result: Result) -> list[Panel]:
    """Predicted times divided by the bound, by cluster."""
    found: dict[str, list[Line]] = {}
    for each in result.of("predicted"):
        cluster, _, ranks = each.where.rpartition(", ")
        found.setdefault(cluster, []).append(Line(f"{each.what}, {ranks}", {"hetcomm": each.ratio}))
    reference = "predicted, divided by the least that the wires permit"
    return [Panel(f"hosts of 8: {cluster}", reference, lines) for cluster, lines in found.items()]


SPECIAL: dict[str, Callable[[Result], list[Panel]]] = {
    "start-up": _start_up,
    "overlap": _overlap,
    "scale": _scale,
    "codec-rates": _codec_rates,
    "codec-links": _codec_links,
}
