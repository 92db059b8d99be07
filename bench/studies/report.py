"""A study's table for the terminal."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.table import Table

from studies.stored import Result, ratio_text, time_text

WIDTH = 170


def show(result: Result, summary: str) -> None:
    seconds = result.facts["seconds"]
    table = Table(title=f"{result.study}: {summary}; {seconds:.0f} s", title_justify="left")
    table.box, table.pad_edge = box.SIMPLE_HEAD, False
    table.add_column("case")
    for heading in ("hetcomm", "other", "of", "ratio", "target", ""):
        table.add_column(heading, justify="left" if heading == "of" else "right", no_wrap=True)
    for each in result.verdicts:
        met = {True: "met", False: "missed", None: ""}[each.met]
        ratio = "" if math.isnan(each.ratio) else ratio_text(each.ratio)
        table.add_row(
            each.case, _time(each.ours), _time(each.best), each.name, ratio, each.target, met
        )
    console = Console(width=WIDTH)
    console.print(table)
    for failure in result.failures:
        console.print(f"failed: {failure}", style="red", highlight=False)


def _time(seconds: float) -> str:
    return "" if math.isnan(seconds) else time_text(seconds)
