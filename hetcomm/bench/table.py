"""Results as tables for people and as files for programs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetcomm import _core
from hetcomm.bench.gap import Gap
from hetcomm.bench.legs import shown_legs
from hetcomm.bench.row import Row
from hetcomm.bench.tolerance import tolerance_of
from hetcomm.pages import print_page
from hetcomm.printable import printable

COLUMNS = ("min", "median", "p99", "algbw", "busbw")
# Of a row in CSV; times in seconds, bandwidths in bytes per second.
CSV_COLUMNS = (
    "collective", "dtype", "op", "in_place", "root", "ranks", "bytes", "count", "backend",
    "library", "min", "median", "p99", "algbw", "busbw", "checked", "codec",
    "fewer_bytes", "error", "predicted", "calls_per_sample", "samples",
)  # fmt: skip


def title_of(row: Row) -> str:
    """The common title of the rows of one table."""
    case = row.case
    words = [case.collective]
    words += [case.dtype] if case.count else []
    words += [case.op] if case.op else []
    if case.kind.rooted:
        words.append(f"root {case.root}")
    if len(case.kind.places) > 1:
        words.append("in place" if case.in_place else "out of place")
    return ", ".join(words)


def render(rows: Sequence[Row]) -> RenderableType:
    """A table for each collective, dtype, operation and place. ratio: a backend's median divided by
    that of the first backend."""
    tables = []
    for title, group in groupby(rows, title_of):
        same = list(group)
        tables.append(_table(title, same))
        if any(row.legs for row in same):
            tables.append(_waits_table(f"Who comes last to {title}", same))
        if any(row.legs and row.legs.inside for row in same):
            tables.append(_legs_table(f"Legs of {title}", same))
    return Group(*tables)


def number_table(title: str, columns: Iterable[str], words: Sequence[str] = ()) -> Table:
    """An empty table of numbers. words: the columns of words. Never folds a number or a name."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    return table


def _table(title: str, rows: list[Row]) -> Table:
    predicts = any(row.predicted for row in rows)
    several = len({row.backend for row in rows}) > 1
    names = ["size", "backend", *COLUMNS, *(["ratio"] if several else [])]
    encodes = any(row.codec for row in rows)
    names += ["fewer bytes", "error"] if encodes else []
    names += ["predicted", "of that"] if predicts else []
    table = number_table(title, names, ["backend"])
    for _, group in groupby(rows, lambda row: row.case):
        same = list(group)
        for index, row in enumerate(same):
            cells = [_core.format_seconds(t) for t in (row.minimum, row.median, row.p99)]
            cells += [_rate(row.algbw), _rate(row.busbw)]
            if several:
                cells.append(f"{row.median / same[0].median:.2f}" if index else "1")
            if encodes:
                cells.append(f"{row.fewer_bytes:.2f}x" if row.fewer_bytes else "-")
                cells.append("-" if row.error is None else f"{row.error:.2g}" if row.error else "0")
            if predicts:
                cells += _predicted(row)
            size = _core.format_bytes(row.case.bytes) if index == 0 else ""
            table.add_row(size, row.backend, *cells)
    return table


def _waits_table(title: str, rows: list[Row]) -> Table:
    """Waits and bytes over the bridge, as seen from outside."""
    predicts = any(row.predicted for row in rows)
    names = ["size", "backend", "waits", "mostly for", "over the bridge"]
    table = number_table(title, [*names, *(["predicted"] if predicts else [])], ["backend"])
    for row in rows:
        if row.legs is None:
            continue
        waits, last = "-", "-"
        if row.legs.waits is not None and row.legs.last is not None:
            waits = _core.format_seconds(sum(row.legs.waits) / len(row.legs.waits))
            last = f"rank {row.legs.waited_for}, {max(row.legs.last):.0%}"
        cells = [waits, last, _core.format_bytes(row.legs.bridge_bytes)]
        if row.predicted:
            cells.append(_core.format_bytes(row.predicted["bridge_bytes"]))
        table.add_row(_core.format_bytes(row.case.bytes), row.backend, *cells)
    return table


def _legs_table(title: str, rows: list[Row]) -> Table:
    """Each leg on the rank with the longest one."""
    names = ["size", "backend", "leg", "on rank", "measured", "predicted", "of that"]
    table = number_table(title, names, ["backend", "leg"])
    for row in rows:
        size = _core.format_bytes(row.case.bytes)
        for leg in shown_legs(row.legs):
            rank = f"{leg.rank}" if leg.measured else "-"
            cells = [leg.name, rank, _core.format_seconds(leg.measured)]
            cells.append(_core.format_seconds(leg.predicted))
            cells.append(f"{leg.measured / leg.predicted:.2f}" if leg.predicted else "-")
            table.add_row(size, row.backend if size else "", *cells)
            size = ""
    return table


_UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def _rate(bytes_per_second: float) -> str:
    if not bytes_per_second:
        return "-"
    unit, name = next((each for each in _UNITS if bytes_per_second >= each[0]), _UNITS[-1])
    return f"{bytes_per_second / unit:.3g} {name}"


def _predicted(row: Row) -> tuple[str, str]:
    """The prediction, and the median divided by it: above 1, the call is slower than its plan."""
    total = row.predicted["total"] if row.predicted else 0
    return (_core.format_seconds(total), f"{row.median / total:.2f}") if total else ("-", "-")


def header(facts: dict[str, Any]) -> str:
    """Ranks, machine and backends, in two lines."""
    machine, hosts = facts["machine"], facts["hosts"]
    count = max(hosts) + 1
    where = f"{len(hosts)} ranks on {count} host{'s' if count > 1 else ''}"
    backends = ", ".join(f"{each['name']} = {each['library']}" for each in facts["backends"])
    effort = facts["settings"]["effort"]
    checked = "checked" if effort["check"] else "NOT CHECKED"
    lossy = [each["codec"] for each in facts["backends"] if tolerance_of(each["codec"])]
    if lossy and effort["check"]:
        checked += f", within the error of {', '.join(lossy)}"
    gap = Gap(**effort["gap"]).describe()
    calls = f"; each call {gap}" if gap else ""
    return (
        f"{where}; {machine['cores']} cores of {machine['processor']}\n"
        f"{backends}{calls}; results {checked}"
    )


def output() -> Console:
    """Standard output. A file has no width, and must not lose a column."""
    return Console(width=None if sys.stdout.isatty() else 140)


def show(facts: dict[str, Any], rows: Sequence[Row]) -> None:
    console = output()
    console.print(Text(printable(header(facts))), soft_wrap=True)
    machine = facts["machine"]
    if machine["load"] > machine["cores"] / 2:
        console.print(
            f"Other work ran on this machine before (load {machine['load']} on {machine['cores']} "
            "cores): expect noise.",
            style="yellow",
            highlight=False,
        )
    print_page(console, render(rows))


def json_text(facts: dict[str, Any], rows: Sequence[Row]) -> str:
    return json.dumps({**facts, "rows": [row.as_json() for row in rows]}, indent=1) + "\n"


def csv_text(facts: dict[str, Any], rows: Sequence[Row]) -> str:
    """A line for each row; the samples as their number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        line = row.as_json()
        line["samples"] = len(row.samples)
        line["predicted"] = row.predicted["total"] if row.predicted else None
        writer.writerow(line)
    return text.getvalue()


def write(path: Path, facts: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes the format of the suffix, one of FORMATS."""
    if path.suffix == ".png":
        # Importing matplotlib takes half a second: not for every command.
        from hetcomm.bench.plot import write_plot

        write_plot(path, facts, rows)
    else:
        path.write_text(
            {".json": json_text, ".csv": csv_text}[path.suffix](facts, rows), encoding="utf-8"
        )


FORMATS = (".json", ".csv", ".png")
