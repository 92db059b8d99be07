"""A study's picture: time by size for each layout and collective, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.demo.plot import CANDIDATE_COLOUR, STYLE, pyplot
from studies.model import Outcome

COLUMNS, TICKS = 3, 5
COLOURS = {"hetcomm": CANDIDATE_COLOUR, "torch:hetcomm": "#5aa9c4", "gloo": "#a9b1ba"}
COLOURS |= {"openmpi": "#c4622d", "mpich": "#6a8f3c"}
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "torch:hetcomm": "hetcomm through torch"}
Panels = dict[tuple[str, str], dict[str, dict[int, list[float]]]]


def draw(path: Path, name: str, outcomes: Sequence[Outcome], bars: dict[str, float]) -> None:
    panels = _panels(outcomes)
    count = len(panels) + bool(bars)
    if not count:
        return
    rows = -(-count // COLUMNS)
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(11, 0.6 + 2.9 * rows), layout="constrained")
        figure.suptitle(name, fontsize=10)
        places = list(figure.subplots(rows, min(COLUMNS, count), squeeze=False).flat)
        for (where, curves), axes in zip(panels.items(), places, strict=False):
            _curves(axes, where, curves)
        if bars:
            _bars(places[len(panels)], bars)
        for axes in places[count:]:
            axes.set_visible(False)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


def _panels(outcomes: Sequence[Outcome]) -> Panels:
    """By layout and collective, then by whom, then by size; hetcomm's times of all jobs."""
    panels: Panels = {}
    for outcome in outcomes:
        for row in outcome.rows:
            who = outcome.opponent if row["backend"] == "mpi" else row["backend"]
            panel = panels.setdefault((outcome.layout, row["collective"]), {})
            panel.setdefault(who, {}).setdefault(row["bytes"], []).append(row["median"])
    return panels


def _curves(axes: Any, where: tuple[str, str], curves: dict[str, dict[int, list[float]]]) -> None:
    for who, times in curves.items():
        sizes = sorted(times)
        axes.plot(
            sizes,
            [sum(times[size]) / len(times[size]) * 1e6 for size in sizes],
            color=COLOURS.get(who, "#7b5ea7"),
            marker="o",
            markersize=3,
            label=NAMES.get(who, who),
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    measured = sorted({size for times in curves.values() for size in times})
    shown = measured[:: -(-len(measured) // TICKS)]
    axes.set_xticks(shown, [_core.format_bytes(size) for size in shown], fontsize=7)
    axes.minorticks_off()
    axes.set_title(f"{where[1]}, {where[0]}", fontsize=8)
    axes.set_ylabel("microseconds")
    axes.legend(fontsize=7)


def _bars(axes: Any, bars: dict[str, float]) -> None:
    names = list(bars)
    colours = [_colour(name) for name in names]
    axes.barh(names, [seconds * 1e3 for seconds in bars.values()], color=colours)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=6.5)
    axes.set_xlabel("milliseconds")


def _colour(name: str) -> str:
    known = ("openmpi", "mpich", "gloo", "torch:hetcomm", "hetcomm")
    return COLOURS[next((each for each in known if each in name), "gloo")]
