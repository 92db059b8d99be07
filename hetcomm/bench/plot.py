"""The picture: for each collective, time and bus bandwidth by size, a curve for each backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import shorten
from typing import Any

from hetcomm import _core
from hetcomm.bench.row import Row, quantile
from hetcomm.bench.table import header, title_of
from hetcomm.demo.plot import CANDIDATE_COLOUR, STYLE, pyplot

# Of the backends, in order.
COLOURS = (CANDIDATE_COLOUR, "#a9b1ba", "#c4622d", "#6a8f3c", "#7b5ea7", "#3a4249")


def write_plot(path: Path, facts: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes a PNG: a row of two panels for each printed table."""
    groups = [(title, list(group)) for title, group in groupby(rows, title_of)]
    with pyplot.rc_context(STYLE):
        height = 1.0 + 3.4 * len(groups)
        figure = pyplot.figure(figsize=(11, height), layout="constrained")
        figure.suptitle(
            "\n".join(shorten(line, 130, placeholder=" ...") for line in header(facts).split("\n")),
            fontsize=9.5,
            color="#5b6570",
        )
        panels = figure.subplots(len(groups), 2, squeeze=False)
        for (title, group), (left, right) in zip(groups, panels, strict=True):
            _draw(left, group, "microseconds", lambda seconds, row: seconds * 1e6)
            left.set_yscale("log")
            left.set_title(title)
            _draw(right, group, "bus bandwidth, GB/s", _bandwidth)
            right.set_ylim(bottom=0)
            left.legend(loc="upper left")
        figure.savefig(path, dpi=160)
        pyplot.close(figure)


def _bandwidth(seconds: float, row: Row) -> float:
    return row.busbw * row.median / seconds / 1e9


def _draw(axes: Any, rows: list[Row], label: str, value: Callable[[float, Row], float]) -> None:
    """Medians, in a band of the middle 80 % of the samples. Predictions are dashed."""
    for index, name in enumerate(dict.fromkeys(row.backend for row in rows)):
        own = [row for row in rows if row.backend == name]
        sizes = [max(row.case.bytes, 1) for row in own]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(
            sizes,
            [value(row.median, row) for row in own],
            color=colour,
            marker="o",
            markersize=3,
            label=f"{name} ({own[0].library})",
        )
        low, high = (
            [value(quantile(row.samples, share), row) for row in own] for share in (0.1, 0.9)
        )
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        predicted = [(row, row.predicted["total"]) for row in own if row.predicted]
        predicted = [(row, seconds) for row, seconds in predicted if seconds > 0]
        if predicted:
            axes.plot(
                [max(row.case.bytes, 1) for row, _ in predicted],
                [value(seconds, row) for row, seconds in predicted],
                color=colour,
                linestyle="--",
                linewidth=1,
                label=f"{name}, predicted",
            )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: _core.format_bytes(round(size)))
    axes.set_xlabel("size")
    axes.set_ylabel(label)
