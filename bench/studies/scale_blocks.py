"""The table of the study `scale`."""

from __future__ import annotations

from hetcomm import _core
from studies.stored import Results, ratio_text, time_text
from studies.tables import table


def planned(results: Results) -> str:
    """A row for each cluster and collective."""
    rows = []
    bars = results["scale"].bars
    verdicts = {each.case: each for each in results["scale"].of("plan time")}
    ratios = {each.case: each for each in results["scale"].of("predicted")}
    for case in dict.fromkeys(key.rpartition(": ")[0] for key in bars):
        cluster, ranks, what = case.rsplit(", ", 2)
        fact = {
            key: bars[f"{case}: {key}"]
            for key in ("seconds", "memory", "steps", "message", "total")
        }
        aim = verdicts.get(case)
        predicted = ratios.get(case)
        target = "-"
        if aim is not None:
            target = f"{time_text(aim.best)}, {'met' if aim.met else '**missed**'}"
        rows.append(
            [
                cluster,
                ranks.removesuffix(" ranks"),
                what,
                time_text(fact["seconds"]),
                target,
                _core.format_bytes(int(fact["memory"])),
                f"{fact['steps']:.0f}",
                _core.format_bytes(int(fact["message"])) if fact["message"] else "-",
                time_text(fact["total"]),
                ratio_text(predicted.ratio) if predicted else "-",
            ]
        )
    heads = ["hosts of 8", "ranks", "call", "choice and plan", "target", "memory", "steps"]
    return table([*heads, "median message", "predicted", "by bound"], rows)
