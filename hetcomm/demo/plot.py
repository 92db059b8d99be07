"""The demo's picture: loss curves, step times and traffic over the bridge."""

from collections.abc import Callable, Sequence
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


def draw_bars(
    axes: Axes,
    comparisons: Sequence[Comparison],
    values: Callable[[Training], Sequence[float]],
    label: str,
) -> None:
    """A pair of bars per layout: the median, and the range of the middle 80 % of the steps."""
    for index, comparison in enumerate(comparisons):
        pair = ((comparison.baseline, BASELINE_COLOUR), (comparison.candidate, CANDIDATE_COLOUR))
        for side, (training, colour) in zip((-1, 1), pair, strict=True):
            ordered = sorted(without_warm_up(values(training)))
            low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
            middle = median(ordered)
            place = index + side * 0.19
            axes.bar(
                place,
                middle,
                width=0.34,
                color=colour,
                yerr=[[middle - low], [high - middle]],
                error_kw={"ecolor": "#3a4249", "elinewidth": 1, "capsize": 3},
                label=training.backend if index == 0 else None,
            )
            text = f"{middle:.0f}" if middle >= 100 else f"{middle:.3g}"
            axes.annotate(
                text,
                (place, high),
                xytext=(0, 4),
                textcoords="offset points",
                horizontalalignment="center",
            )
    axes.set_xticks(
        range(len(comparisons)), [LAYOUT_TITLES[comparison.layout] for comparison in comparisons]
    )
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(comparisons) - 0.4)
    axes.set_ylabel(label)
    axes.margins(y=0.22)
    axes.legend(loc="upper right", ncols=2)


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


def write_plot(path: Path, comparisons: Sequence[Comparison], subtitle: str) -> None:
    """Writes a PNG: above, one loss panel per layout; below, step time and bytes per step."""
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(11, 7.6), layout=ConstrainedLayoutEngine(w_pad=0.12))
        above, below = figure.subfigures(2, 1, squeeze=False, hspace=0.04)[:, 0]
        names = comparisons[0].baseline.backend, comparisons[0].candidate.backend
        title = f"The same training on {names[0]} and on {names[1]}"
        figure.suptitle(f"{title}\n\n", fontsize=14, fontweight="bold")
        figure.text(
            0.5,
            0.938,
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
        draw_bars(
            time_axes,
            comparisons,
            lambda training: [seconds * 1e3 for seconds in training.seconds],
            "milliseconds per step",
        )
        byte_axes.set_title("Over the bridge, both ways")
        if comparisons[0].candidate.network_bytes is None:
            draw_uncounted(byte_axes)
        else:
            draw_bars(
                byte_axes,
                comparisons,
                lambda training: [count / 1e6 for count in training.network_bytes or ()],
                "megabytes per step",
            )
        ups = ", ".join(f"{c.layout} {c.speed_up:.2f}x" for c in comparisons)
        time_axes.set_title(f"Step time (speed-up: {ups})")
        figure.savefig(path, dpi=160)
        pyplot.close(figure)
