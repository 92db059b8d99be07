"""The demo's picture: loss curves, step times and traffic over the bridge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine

from hetcomm.demo.report import LAYOUT_TITLES
from hetcomm.demo.training import Comparison, Training, without_warm_up

BASELINE_COLOUR, CANDIDATE_COLOUR = "#a9b1ba", "#0b6e8f"
CODEC_COLOURS = (CANDIDATE_COLOUR, "#c4622d")
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5b6570",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e6e9ec",
    "legend.frameon": False,
}


def draw_losses(axes: Axes, comparison: Comparison) -> None:
    """Both curves. The baseline is wide, because the curves mostly coincide."""
    baseline, candidate = comparison.baseline, comparison.candidate
    axes.plot(baseline.losses, color=BASELINE_COLOUR, linewidth=5, label=baseline.backend)
    axes.plot(candidate.losses, color=CANDIDATE_COLOUR, linewidth=1.4, label=candidate.backend)
    axes.set_title(f"Loss: {LAYOUT_TITLES[comparison.layout]}")
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy (nats per byte)")
    axes.set_xlim(0, max(len(baseline.losses) - 1, 1))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles,
        labels,
        title=f"largest difference {comparison.largest_difference:.1e}",
        loc="upper right",
    )


@dataclass(frozen=True)
class Bar:
    """The bar of one training.

    place: on the axis. label: for the legend.
    """

    training: Training
    place: float
    colour: str
    label: str | None = None


def pairs_of(comparisons: Sequence[Comparison]) -> list[Bar]:
    """A pair per layout."""
    bars = []
    for index, comparison in enumerate(comparisons):
        pair = ((comparison.baseline, BASELINE_COLOUR), (comparison.candidate, CANDIDATE_COLOUR))
        for side, (training, colour) in zip((-1, 1), pair, strict=True):
            label = training.backend if index == 0 else None
            bars.append(Bar(training, index + side * 0.19, colour, label))
    return bars


def draw_bars(
    axes: Axes,
    bars: Sequence[Bar],
    names: Sequence[str],
    values: Callable[[Training], Sequence[float]],
    label: str,
) -> None:
    """Each bar is the median, with the range of the middle 80 % of the steps. names: below 0, 1
    and so on."""
    for bar in bars:
        ordered = sorted(without_warm_up(values(bar.training)))
        low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
        middle = median(ordered)
        axes.bar(
            bar.place,
            middle,
            width=0.34,
            color=bar.colour,
            yerr=[[middle - low], [high - middle]],
            error_kw={"ecolor": "#3a4249", "elinewidth": 1, "capsize": 3},
            label=bar.label,
        )
        text = f"{middle:.0f}" if middle >= 100 else f"{middle:.3g}"
        axes.annotate(
            text,
            (bar.place, high),
            xytext=(0, 4),
            textcoords="offset points",
            horizontalalignment="center",
        )
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylabel(label)
    axes.margins(y=0.22)
    if any(bar.label for bar in bars):
        axes.legend(loc="upper right", ncols=2)


def draw_times(axes: Axes, bars: Sequence[Bar], names: Sequence[str], speed_ups: str) -> None:
    def milliseconds(training: Training) -> list[float]:
        return [seconds * 1e3 for seconds in training.seconds]

    draw_bars(axes, bars, names, milliseconds, "milliseconds per step")
    axes.set_title(f"Step time (speed-up: {speed_ups})")


def draw_bytes(axes: Axes, bars: Sequence[Bar], names: Sequence[str]) -> None:
    def megabytes(training: Training) -> list[float]:
        return [count / 1e6 for count in training.network_bytes or ()]

    axes.set_title("Over the bridge, both ways")
    if bars[-1].training.network_bytes is None:
        draw_uncounted(axes)
    else:
        draw_bars(axes, bars, names, megabytes, "megabytes per step")


def draw_codecs(panels: Sequence[Axes], codecs: Sequence[Comparison]) -> None:
    """Losses, step times and bytes with each codec, beside those without. Three panels."""
    baseline = codecs[0].baseline
    loss_axes, time_axes, byte_axes = panels
    bars = [Bar(baseline, 0, BASELINE_COLOUR)]
    loss_axes.plot(baseline.losses, color=BASELINE_COLOUR, linewidth=5, label="none")
    lines = zip(codecs, CODEC_COLOURS, ("-", "--"), strict=False)
    for place, (comparison, colour, dashes) in enumerate(lines, 1):
        bars.append(Bar(comparison.candidate, place, colour))
        loss_axes.plot(
            comparison.candidate.losses,
            color=colour,
            linewidth=1.4,
            linestyle=dashes,
            label=f"{comparison.candidate.codec}: within {comparison.largest_difference:.1e}",
        )
    loss_axes.set_title(f"Codecs between islands: {baseline.layout} on {baseline.backend}")
    loss_axes.set_xlabel("step")
    loss_axes.set_ylabel("cross-entropy (nats per byte)")
    loss_axes.legend(loc="upper right")
    names = ["none", *(comparison.candidate.codec for comparison in codecs)]
    ups = ", ".join(f"{each.speed_up:.2f}x" for each in codecs)
    draw_times(time_axes, bars, names, ups)
    draw_bytes(byte_axes, bars, names)


def draw_uncounted(axes: Axes) -> None:
    """Explains why there are no bars."""
    axes.set_axis_off()
    axes.text(
        0.5,
        0.5,
        "Not counted: this machine emulates no cluster,\nso all ranks share its loopback, "
        "and no link is shaped.\nStep times tell nothing about slow links.",
        ha="center",
        va="center",
        color="#5b6570",
        transform=axes.transAxes,
    )


def write_plot(
    path: Path,
    comparisons: Sequence[Comparison],
    codecs: Sequence[Comparison],
    subtitle: str,
    more: Sequence[Callable[[Any], None]] = (),
) -> None:
    """Writes a PNG: above, one loss panel per layout; below, step time and bytes per step. codecs:
    of one baseline, in a third row. more: each draws a row of its own, into a part of the
    figure."""
    rows = 2 + bool(codecs) + len(more)
    height = 3.8 * rows
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(11, height), layout=ConstrainedLayoutEngine(w_pad=0.12))
        above, below, *last = figure.subfigures(rows, 1, squeeze=False, hspace=0.04)[:, 0]
        names = comparisons[0].baseline.backend, comparisons[0].candidate.backend
        title = f"The same training on {names[0]} and on {names[1]}"
        figure.suptitle(f"{title}\n\n", fontsize=14, fontweight="bold")
        figure.text(
            0.5,
            1 - 0.47 / height,
            shorten(subtitle, 130, placeholder=" ..."),
            ha="center",
            va="top",
            color="#5b6570",
        )
        loss_axes = above.subplots(1, len(comparisons), sharey=True, squeeze=False)[0]
        for axes, comparison in zip(loss_axes, comparisons, strict=True):
            draw_losses(axes, comparison)
            axes.label_outer()
        time_axes, byte_axes = below.subplots(1, 2)
        bars, layouts = pairs_of(comparisons), [LAYOUT_TITLES[each.layout] for each in comparisons]
        ups = ", ".join(f"{each.layout} {each.speed_up:.2f}x" for each in comparisons)
        draw_times(time_axes, bars, layouts, ups)
        draw_bytes(byte_axes, bars, layouts)
        if codecs:
            draw_codecs(last[0].subplots(1, 3), codecs)
        for draw, part in zip(more, last[bool(codecs) :], strict=True):
            draw(part)
        figure.savefig(path, dpi=160)
        pyplot.close(figure)
