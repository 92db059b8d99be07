"""A study's table, its file for programs, and its picture."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hetcomm import _core
from hetcomm.demo.machine import describe_machine
from studies.model import Outcome, Plan, Study, Verdict

WIDTH = 170


def show(
    name: str, study: Study, verdicts: Sequence[Verdict], failures: Sequence[str], seconds: float
) -> None:
    table = Table(title=f"{name}: {study.summary}; {seconds:.0f} s", title_justify="left")
    table.box, table.pad_edge = box.SIMPLE_HEAD, False
    table.add_column("case")
    for heading in ("hetcomm", "other", "of", "ratio", "target", ""):
        table.add_column(heading, justify="left" if heading == "of" else "right", no_wrap=True)
    for each in verdicts:
        met = {True: "met", False: "missed", None: ""}[each.met]
        cells = [_time(each.ours), _time(each.best), each.name, _ratio(each.ratio), each.target]
        table.add_row(each.case, *cells, met)
    console = Console(width=WIDTH)
    console.print(table)
    for failure in failures:
        console.print(f"failed: {failure}", style="red", highlight=False)


def write(
    folder: Path,
    name: str,
    plan: Plan,
    outcomes: Sequence[Outcome],
    verdicts: Sequence[Verdict],
    bars: dict[str, float],
    failures: Sequence[str],
    seconds: float,
) -> None:
    """NAME.json, and NAME.png where there is something to draw."""
    from studies.draw import draw  # loading matplotlib takes half a second

    told = {
        "study": name,
        "command": f"python bench/study.py {name}{' --quick' if plan.quick else ''}",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": describe_machine(),
        "seconds": round(seconds, 1),
        "failures": list(failures),
        "verdicts": [_plain(asdict(each)) for each in verdicts],
        "bars": bars,
        "jobs": [_plain(asdict(each)) for each in outcomes],
    }
    # One line for each verdict and job: a file of a few lines shows what changed.
    lines = [f"{json.dumps(key)}: {_nested(value)}" for key, value in told.items()]
    (folder / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    draw(folder / f"{name}.png", name, outcomes, bars)


def _nested(value: object) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n " + ",\n ".join(json.dumps(each) for each in value) + "\n]"


def _plain(value: object) -> object:
    """JSON has no NaN, and no more digits than mean something."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def _time(seconds: float) -> str:
    return "" if math.isnan(seconds) else _core.format_seconds(seconds)


def _ratio(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{ratio:.3f}" if ratio < 10 else f"{ratio:.3g}"
