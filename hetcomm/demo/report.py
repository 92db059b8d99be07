"""The demo's results as tables for the terminal and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from hetcomm.demo.training import Comparison, Training

LAYOUT_TITLES = {
    "ddp": "data parallel over all ranks",
    "pipeline": "pipeline across the islands",
    "planned": "planned by hetcomm",
}
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.,-=+*#"  # for encodings without BARS


def sparkline(values: Sequence[float], width: int = 40, bars: str = BARS) -> str:
    """A line of at most `width` bars. A bar of several values shows their mean."""
    width = min(width, len(values))
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(bars[round((mean - low) / span * 7) if span else 0] for mean in means)


def loss_table(comparison: Comparison) -> Table:
    """Both losses at evenly spaced steps, with the first and the last."""
    baseline, candidate = comparison.baseline, comparison.candidate
    table = Table(title=f"Loss, {LAYOUT_TITLES[comparison.layout]}", title_justify="left")
    table.add_column("step", justify="right")
    for training in (baseline, candidate):
        table.add_column(training.backend, justify="right")
    table.add_column("difference", justify="right")
    last, rows = len(baseline.losses) - 1, 6
    for step in sorted({round(row * last / (rows - 1)) for row in range(rows)}):
        table.add_row(
            str(step),
            f"{baseline.losses[step]:.6f}",
            f"{candidate.losses[step]:.6f}",
            f"{comparison.differences[step]:.1e}",
        )
    return table


def summary_table(comparisons: Sequence[Comparison]) -> Table:
    """Step time, traffic and speed-up of every run."""
    table = Table(title="Side by side (medians over the steps)", title_justify="left")
    table.add_column("layout", no_wrap=True)
    table.add_column("backend", no_wrap=True)
    for heading in ("step", "over the bridge\nper step", "speed-up", "largest\nloss difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    for comparison in comparisons:
        for training in (comparison.baseline, comparison.candidate):
            is_candidate = training is comparison.candidate
            table.add_row(
                "" if is_candidate else comparison.layout,
                training.backend,
                f"{training.step_seconds * 1e3:.0f} ms",
                bridge_bytes(training),
                f"{comparison.speed_up:.2f}x" if is_candidate else "",
                f"{comparison.largest_difference:.1e}" if is_candidate else "",
                end_section=is_candidate,
            )
    return table


def curves(trainings: Sequence[Training], bars: str) -> Table:
    """One line of bars per run: the loss from the first step to the last."""
    table = Table.grid(padding=(0, 2))
    for training in trainings:
        ends = f"{training.losses[0]:.2f} to {training.losses[-1]:.2f}"
        table.add_row(training.layout, training.name, sparkline(training.losses, bars=bars), ends)
    return table


def bridge_bytes(training: Training) -> str:
    """Those of a step."""
    count = training.step_bytes
    return "not counted" if count is None else f"{count / 1e6:.2f} MB"


def bars_of(encoding: str) -> str:
    """For a terminal of that encoding."""
    try:
        BARS.encode(encoding)
    except UnicodeEncodeError:
        return PLAIN_BARS
    return BARS


def render(comparisons: Sequence[Comparison], encoding: str = "utf-8") -> RenderableType:
    """The tables of all layouts, for a terminal of that encoding."""
    tables = [loss_table(comparison) for comparison in comparisons]
    runs = [run for each in comparisons for run in (each.baseline, each.candidate)]
    return Group(*tables, curves(runs, bars_of(encoding)), "", summary_table(comparisons))


def as_dictionary(training: Training) -> dict[str, Any]:
    medians = {
        "median_step_seconds": training.step_seconds,
        "median_network_bytes": training.step_bytes,
    }
    return medians | asdict(training)


def write_json(path: Path, comparisons: Sequence[Comparison], facts: dict[str, Any]) -> None:
    """Writes `facts` (machine, cluster, settings), and every step of every run."""
    layouts = {
        comparison.layout: {
            "speed_up": comparison.speed_up,
            "largest_loss_difference": comparison.largest_difference,
            "tolerance": comparison.tolerance,
            "agrees": comparison.agrees,
            "baseline": as_dictionary(comparison.baseline),
            "candidate": as_dictionary(comparison.candidate),
        }
        for comparison in comparisons
    }
    path.write_text(json.dumps(facts | {"layouts": layouts}, indent=2) + "\n", encoding="utf-8")
