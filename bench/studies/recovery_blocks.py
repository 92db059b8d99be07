"""The table of docs/errors.md, of what bench/recovery.py stored."""

from __future__ import annotations

from studies import codec_blocks, stored
from studies.stored import Result, Results, time_text
from studies.tables import table

STUDY, KIND = "recovery", "recovery"


def recovered(results: Results) -> str:
    """The results have no study of this name: the measurement is a script of its own."""
    return table_of(stored.load(STUDY))


def table_of(result: Result) -> str:
    rows = []
    for each in result.of(KIND):
        target = f"{each.target}, {'met' if each.met else '**missed**'}"
        times = [time_text(result.bars[each.case]), time_text(each.ours)]
        rows.append([each.where, each.what, *times, target])
    count = result.of(KIND)[0].name
    found = table(["ranks", "until", "median", count, "target of it"], rows)
    return f"{found}\n\n{codec_blocks.origin(result)}"
