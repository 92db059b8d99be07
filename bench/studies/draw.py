"""A study's picture: a line of dots for each case, where 1 is the limit or the best peer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

from hetcomm.demo.plot import CANDIDATE_COLOUR, STYLE, pyplot
from studies.panels import Line, Panel
from studies.stored import collective_of, ratio_text

COLUMNS, WIDTH, LINE, AROUND, ABOVE, BELOW = 2, 11.0, 0.23, 0.85, 0.85, 0.3  # columns; inches
TITLE, LETTERS = 0.22, 104  # inches of a line of the title, and its letters
FURTHEST = 2.0  # where the axis ends
GREY, DARK, MISSED = "#5b6570", "#3a4249", "#c0272d"
COLOURS = {"hetcomm": CANDIDATE_COLOUR, "openmpi": "#d98b5f", "mpich": "#8fae6a", "gloo": "#8d959d"}
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
MARKERS = {"hetcomm": "o", "openmpi": "s", "mpich": "D", "gloo": "^"}


def draw(path: Path, panels: Sequence[Panel], title: str, machine: str, stamp: str) -> None:
    """Draws panels below `title`, with `machine` at the bottom. `stamp` names the result of the
    picture in its metadata."""
    columns = min(COLUMNS, len(panels))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    heights = [max(len(panel.lines) for panel in row) * LINE + AROUND for row in rows]
    titles = wrap(title, LETTERS)
    above = ABOVE + TITLE * (len(titles) - 1)
    height = sum(heights) + above + BELOW
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(WIDTH, height), layout="constrained")
        figure.get_layout_engine().set(
            rect=(0, BELOW / height, 1, 1 - (above + BELOW) / height), wspace=0.06
        )
        style = {"fontsize": 12.5, "fontweight": "bold", "va": "top"}
        figure.text(0.01, 1 - 0.13 / height, "\n".join(titles), **style)
        figure.text(0.01, 0.1 / height, machine, fontsize=7.5, color=GREY)
        _legend(figure, panels, 1 - (above - 0.45) / height)
        places = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
        for row, axes_of_row in zip(rows, places, strict=True):
            for panel, axes in zip(row, axes_of_row, strict=False):
                _panel(axes, panel, columns)
            for axes in axes_of_row[len(row) :]:
                axes.set_visible(False)
        figure.savefig(path, dpi=110, metadata={"Description": stamp})
        pyplot.close(figure)


def stamp_of(path: Path) -> str:
    """The stamp of a picture; "" without a stamp or picture."""
    from PIL import Image

    if not path.exists():
        return ""
    with Image.open(path) as image:
        return str(image.info.get("Description", ""))


def _panel(axes: Any, panel: Panel, columns: int) -> None:
    axes.set_xlim(0, FURTHEST)
    axes.set_ylim(len(panel.lines) - 0.4, -0.6)
    axes.axvline(1, color=DARK, linewidth=1.2, zorder=1)
    for place, line in enumerate(panel.lines):
        _line(axes, place, line)
    collectives = [collective_of(line.label) for line in panel.lines]
    if len(set(collectives)) < len(collectives):
        for place, (above, below) in enumerate(pairwise(collectives)):
            if above != below:
                axes.axhline(place + 0.5, color="#c9cfd4", linewidth=0.8)
    axes.set_yticks(range(len(panel.lines)), [line.label for line in panel.lines], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(visible=False, axis="y")
    axes.set_title(fill(panel.title, LETTERS // columns), fontsize=9.5)
    axes.set_xlabel(f"time {panel.reference}", fontsize=8, color=GREY)


def _line(axes: Any, place: int, line: Line) -> None:
    """Behind the axis stand the figure of hetcomm and peers beyond the axis."""
    ours = line.marks["hetcomm"]
    colour = MISSED if line.met is False else COLOURS["hetcomm"]
    beyond = []
    for who, ratio in line.marks.items():
        if who == "hetcomm":
            continue
        if ratio > FURTHEST:
            beyond.append(f"{NAMES.get(who, who)} {ratio_text(ratio)}")
        else:
            axes.plot(ratio, place, MARKERS[who], color=COLOURS[who], markersize=4.5, zorder=5)
    if line.target is not None:
        axes.plot(line.target, place, "|", color=DARK, markersize=10, zorder=2)
    mark = MARKERS["hetcomm"] if ours <= FURTHEST else ">"
    axes.plot(min(ours, FURTHEST), place, mark, color=colour, markersize=6.5, zorder=4,
              clip_on=False)  # fmt: skip
    for text, offset, style in (
        (ratio_text(ours), 8, {"fontsize": 8, "color": colour, "fontweight": "bold"}),
        (", ".join(beyond), 38, {"fontsize": 6.5, "color": GREY}),
    ):
        axes.annotate(
            text, (FURTHEST, place), xytext=(offset, 0), textcoords="offset points", ha="left",
            va="center", annotation_clip=False, **style,
        )  # fmt: skip


def _legend(figure: Any, panels: Sequence[Panel], top: float) -> None:
    lines = [line for panel in panels for line in panel.lines]
    shown = {who for line in lines for who in line.marks}
    entries = [(NAMES.get(who, who), MARKERS[who], COLOURS[who]) for who in COLOURS if who in shown]
    if any(line.met is False for line in lines):
        entries.insert(1, ("hetcomm, target missed", "o", MISSED))
    if any(line.target is not None for line in lines):
        entries.append(("target", "|", DARK))
    handles = [
        pyplot.Line2D([], [], color=colour, marker=marker, linestyle="", label=label)
        for label, marker, colour in entries
    ]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, top), ncols=len(handles), fontsize=8,
        handletextpad=0.2, columnspacing=1.4,
    )  # fmt: skip
