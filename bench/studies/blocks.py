"""Generated blocks of pages: tables of stored results, and README's overview."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

from studies import codec_blocks, plan_blocks, recovery_blocks, scale_blocks, sentences
from studies.catalogue import STUDIES
from studies.model import Verdict
from studies.stored import Results, in_words, ratio_text, time_text
from studies.tables import table

# The meaning of a ratio, by kind of comparison.
MEANINGS = {
    "mpi": "times as fast as the better MPI",
    "mpi, mean": "times as fast as the better MPI",
    "gloo": "times as fast as gloo",
    "slower NIC": "times as fast as one NIC",
    "bound": "times the least that plain TCP needs",
    "round trips": "times a round trip of plain TCP",
    "longer part": "times the longer of its two parts",
    "scratch": "times that much",
    "plan time": "times the time permitted",
    "message": "times as short as permitted",
}
PREDICTIONS = {"prediction": "median error", "worst prediction": "worst error"}
SIZED = re.compile(r"(\w+) ([\d.]+ [KMG]?i?B)")  # "all_reduce 64 KiB"
LABELS = {"mpi": "better MPI", "gloo": "gloo", "bound": "wire bound", "copies": "copies"}


def met(verdict: Verdict) -> str:
    """ "1.5, met"; "-" without a target."""
    if verdict.met is None:
        return "-"
    return f"{verdict.target}, {'met' if verdict.met else '**missed**'}"


def overview(results: Results) -> str:
    """The result and the met targets of each study."""
    rows = []
    for result in results.values():
        aims = [each.met for each in result.verdicts if each.met is not None]
        count = f"{sum(aims)} of {len(aims)}" if aims else "none set"
        rows.append([_picture(result.study), sentences.of(result), count])
    days = sorted(result.facts["time"][:10] for result in results.values())
    machines = dict.fromkeys(sentences.machine(each).split("; ")[0] for each in results.values())
    control = sentences.congestion_control(results.values())
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    return (
        f"{table(['study', 'result', 'targets met'], rows)}\n\n"
        f"Measured on {'; '.join([*machines, *filter(None, [control])])}; {when}."
    )


def _picture(study: str) -> str:
    return f"[{study}](bench/results/{study}.png)"


def missed(results: Results) -> str:
    """A row for each missed target. Adjacent sizes share a row."""
    rows = []
    for study, result in results.items():
        for (met, kind, where, target, case), found in groupby(result.verdicts, _likeness):
            if met is not False or kind in PREDICTIONS:
                continue
            verdicts = list(found)
            sizes = [sized[2] for each in verdicts if (sized := SIZED.fullmatch(each.what))]
            case += f" of {' to '.join(dict.fromkeys((sizes[0], sizes[-1])))}" if sizes else ""
            ratio = sentences.spread(each.ratio for each in verdicts)
            figure = f"{ratio} {MEANINGS.get(kind, '')}".strip()
            rows.append([study, in_words(where), case, figure, target])
    for kind, words in PREDICTIONS.items():
        lacking = {
            study: each
            for study, result in results.items()
            for each in result.of(kind)
            if each.met is False
        }
        if lacking:
            errors = ", ".join(f"{each.ratio:.0%}" for each in lacking.values())
            bound = float(next(iter(lacking.values())).target.split()[-1])
            case = f"{words} of predicted times"
            rows.append([", ".join(lacking), "all", case, errors, f"<= {bound:.0%}"])
    if not rows:
        return "No target is missed."
    heads = ["study", "ranks", "case", "hetcomm", "target"]
    return table(heads, rows)


def _likeness(verdict: Verdict) -> tuple[bool | None, str, str, str, str]:
    """The key of verdicts that share a row: everything but the size."""
    sized = SIZED.fullmatch(verdict.what)
    case = sized[1] if sized else verdict.what
    return verdict.met, verdict.kind, verdict.where, verdict.target, case


def sources(results: Results) -> str:
    """The origin of each study's figures, and the unmeasured runs."""
    rows, lacking = [], []
    for result in results.values():
        facts, here = result.facts, result.facts["machine"]
        caches = ", ".join(f"{size} {name}" for name, size in here.get("caches", {}).items())
        cores = f"{here['cores']} cores of {here['processor']}"
        rows.append(
            [
                f"[{result.study}](../bench/results/{result.study}.json)",
                f"{facts['time'][:16].replace('T', ' ')} UTC",
                sentences.commit(result),
                ", ".join(filter(None, (cores, caches))),
                f"{here['busy']:.0%}" if "busy" in here else "unknown",
                time_text(facts["seconds"]),
                f"{len(result.failures)}",
            ]
        )
        there = {each.where for each in result.outcomes}
        absent = [run.where for run in STUDIES[result.study].runs if run.where not in there]
        if absent:
            lacking.append(f"{result.study}: {'; '.join(map(in_words, absent))}.")
    heads = ["study", "measured", "code", "machine", "other work", "took", "failed jobs"]
    texts = (sentences.machine(each).split("; ")[1].split(", ") for each in results.values())
    versions = sorted({version for text in texts for version in text})
    parts = [table(heads, rows), f"With {', '.join(versions)}."]
    if lacking:
        parts.append(f"Not measured yet: {' '.join(lacking)}")
    return "\n\n".join(parts)


def beside(
    results: Results, study: str, kind: str, more: Sequence[str] = (), where: str | None = None
) -> str:
    """A row for each case with a figure of this kind, and the ratios of more kinds."""
    result = results[study]
    verdicts = result.of(kind, where=where)
    several = len({each.where for each in verdicts}) > 1
    found = {(each.kind, each.where, each.what): each for each in result.of(*more)} if more else {}
    kinds = [each for each in more if any(key[0] == each for key in found)]
    aims = any(each.met is not None for each in verdicts)
    faster = kind in ("mpi", "gloo")
    heads = ["ranks", "case"] if several else ["case"]
    heads += ["hetcomm", LABELS[kind], *(["MPI"] if kind == "mpi" else [])]
    heads += ["times as fast" if faster else "ratio", *(["target"] if aims else [])]
    heads += [f"times as fast as {LABELS[each]}" for each in kinds]
    rows, last = [], ""
    for each in verdicts:
        row = [in_words(each.where) if each.where != last else ""] if several else []
        last = each.where
        row += [each.what, time_text(each.ours), time_text(each.best)]
        row += [each.name.rpartition(" ")[0]] if kind == "mpi" else []
        row += [ratio_text(each.ratio), *([met(each)] if aims else [])]
        others = [found.get((other, each.where, each.what)) for other in kinds]
        row += [ratio_text(other.ratio) if other else "" for other in others]
        rows.append(row)
    return table(heads, rows)


def bytes_sent(results: Results) -> str:
    """Bytes that the NICs of the busiest host send, divided by the size of the all_reduce."""
    rows = []
    for result in results.values():
        for each in result.of("bytes"):
            size = each.what.rpartition(", by ")[2]
            beside_it = each.name if each.name != "-" else ""
            rows.append([in_words(each.where), size, f"{each.ratio:.4g}", beside_it])
    return table(["ranks", "size", "hetcomm", "others"], rows)


def single(results: Results, *which: tuple[str, str]) -> str:
    """A row for each figure of these studies and kinds."""
    rows = []
    for study, kind in which:
        for each in results[study].of(kind):
            ours, best = (time_text(t) if math.isfinite(t) else "-" for t in (each.ours, each.best))
            case = f"{in_words(each.where)}, {each.what}"
            rows.append([case, ours, each.name, best, ratio_text(each.ratio), met(each)])
    return table(["case", "hetcomm", "beside", "takes", "ratio", "target"], rows)


def parts_of_steps(results: Results) -> str:
    result = results["overlap"]
    rows = []
    for each in result.of("longer part"):
        case = f"{each.where}, {each.what}"
        shown = f"{in_words(each.where)}, {each.what.rpartition(' ')[2]}"
        parts = [result.bars[f"{case}: {part}"] for part in ("compute", "communication", "step")]
        rows.append([shown, *map(time_text, parts), ratio_text(each.ratio), met(each)])
    heads = ["ranks, backend", "compute", "communication", "step", "step by longer part", "target"]
    return table(heads, rows)


def start_up(results: Results) -> str:
    bars = results["start-up"].bars
    shown = {"hetcomm": "hetcomm, array API", "openmpi": "Open MPI, by mpiexec"}
    shown |= {"mpich": "MPICH, by mpiexec", "torch:hetcomm": "hetcomm through torch"}
    shown |= {"torch:gloo": "gloo"}
    rows = [
        [text, *(time_text(bars[f"{name}: {what}"]) for what in ("from exec", "after imports"))]
        for name, text in shown.items()
        if f"{name}: from exec" in bars
    ]
    return table(["", "from exec", "after the imports"], rows)


def predictions(results: Results) -> str:
    rows = []
    for result in results.values():
        figures = [result.of(kind) for kind in ("prediction", "worst prediction", "scratch")]
        if not all(figures):
            continue
        (middle,), (worst,), (scratch,) = figures
        case = in_words(worst.what.removeprefix("the worst: "))
        rows.append(
            [
                result.study,
                middle.what.split()[2],
                f"{middle.ratio:.1%}; {met(middle)}",
                f"{worst.ratio:.0%} ({case}); {met(worst)}",
                scratch.what.rpartition(": ")[2],
            ]
        )
    heads = ["study", "predictions", "median error; target", "worst; target", "scratch memory"]
    return table(heads, rows)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "overview": overview,
    "missed": missed,
    "sources": sources,
    "bytes": bytes_sent,
    "overlap": parts_of_steps,
    "start-up": start_up,
    "predictions": predictions,
    "island-latency": partial(beside, study="island-latency", kind="mpi"),
    "island-latency/torch": lambda results: single(
        results, ("island-latency", "gloo"), ("island-latency", "empty call")
    ),
    "island-bandwidth": partial(beside, study="island-bandwidth", kind="mpi", more=("gloo",)),
    "island-bandwidth/copies": partial(beside, study="island-bandwidth", kind="copies"),
    "island-bandwidth/mean": lambda results: single(results, ("island-bandwidth", "mpi, mean")),
    "many-ranks": partial(beside, study="many-ranks", kind="mpi"),
    "many-ranks/torch": partial(beside, study="many-ranks", kind="gloo"),
    "bridge-limit": partial(beside, study="bridge-limit", kind="bound"),
    "bridge-limit/mpi": partial(beside, study="bridge-limit", kind="mpi", more=("gloo",)),
    "bridge-collectives": partial(beside, study="bridge-collectives", kind="bound", more=("mpi",)),
    "layouts": partial(beside, study="layouts", kind="bound", more=("mpi",)),
    "layouts/nics": lambda results: single(results, ("layouts", "slower NIC")),
    "uneven-islands": partial(beside, study="uneven-islands", kind="bound", more=("mpi",)),
    "small-messages": lambda results: single(
        results, *(("small-messages", kind) for kind in ("round trips", "mpi", "gloo"))
    ),
    "staging": partial(beside, study="staging", kind="bound"),
    "scale": scale_blocks.planned,
    **codec_blocks.BLOCKS,
    "plan-check": plan_blocks.checked,
    "recovery": recovery_blocks.recovered,
}
UNUSED = set(STUDIES) - {name.partition("/")[0] for name in BLOCKS}
assert not UNUSED, f"studies without a table: {UNUSED}"
