"""The picture of a layout: layers, ranks and time of each stage, in one row each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from hetcomm import _core
from hetcomm.demo.plot import STYLE, pyplot
from hetcomm.files import writing
from hetcomm.plan.search.propose import Proposal
from hetcomm.plan.search.show import PARTS, describe_shape, hosts_of

PART_COLOURS = ("#0b6e8f", "#a9b1ba", "#c4622d", "#6a8f3c", "#d9dee3")
KIND_COLOURS = ("#35608d", "#22a884", "#b8a13a", "#7a5195", "#8c564b", "#5f6b73")


def write_picture(path: Path, proposal: Proposal) -> None:
    """Writes a PNG. Raises hetcomm.InvalidArgumentError if the file cannot be written."""
    best, stages = proposal.best, proposal.best.layout.stages
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(12, 2.4 + 0.32 * len(stages)), layout="constrained")
        layers, ranks, seconds = figure.subplots(1, 3, sharey=True, width_ratios=(2, 3, 7))
        figure.suptitle(
            f"{_core.format_seconds(best.prediction.seconds)} per step: "
            f"{describe_shape(proposal, best)}",
            fontsize=11,
        )
        layers.barh(range(len(stages)), [stage.layers for stage in stages], color="#5f6b73")
        layers.set_title("Layers")
        labels = [
            f"stage {s} on {hosts_of(proposal, [r for each in stage.replicas for r in each.ranks])}"
            for s, stage in enumerate(stages)
        ]
        layers.set_yticks(range(len(stages)), labels, fontsize=8)
        layers.invert_yaxis()
        draw_ranks(ranks, proposal)
        draw_parts(seconds, proposal)
        for axes in (layers, ranks, seconds):
            axes.grid(visible=False, axis="y")
            axes.tick_params(axis="y", length=0)
        handles = [bars for axes in (ranks, seconds) for bars in axes.containers]
        figure.legend(handles=handles, loc="outside lower center", ncols=8, fontsize=9)
        try:
            with writing("--picture", path):
                figure.savefig(path, dpi=140)
        finally:
            pyplot.close(figure)


def draw_ranks(axes: Axes, proposal: Proposal) -> None:
    """A bar for each stage: its ranks by kind of device. The title counts the idle ones."""
    devices, layout = proposal.search.terms.problem.devices, proposal.best.layout
    counts = [
        Counter(devices[rank] for replica in stage.replicas for rank in replica.ranks)
        for stage in layout.stages
    ]
    left = np.zeros(len(counts))
    for number, kind in enumerate(dict.fromkeys(devices)):
        values = np.array([each[kind] for each in counts])
        colour = KIND_COLOURS[number % len(KIND_COLOURS)]
        axes.barh(range(len(counts)), values, left=left, color=colour, label=kind)
        left += values
    idle = len(proposal.idle)
    axes.set_title("Ranks by kind" + (f", {idle} idle" if idle else ""))


def draw_parts(axes: Axes, proposal: Proposal) -> None:
    """A bar for each stage: the seconds of the step by part, of the replica that waits least."""
    prediction, layout = proposal.best.prediction, proposal.best.layout
    stages = range(len(layout.stages))
    slowest = [
        min(
            (prediction.parts[s, r] for r in range(layout.replicas)),
            key=lambda parts: parts["waiting"] + parts["barrier"] + parts["end"],
        )
        for s in stages
    ]
    left = np.zeros(len(stages))
    for (name, members), colour in zip(PARTS.items(), PART_COLOURS, strict=True):
        values = np.array([sum(parts.get(each, 0.0) for each in members) for parts in slowest])
        axes.barh(list(stages), values, left=left, color=colour, label=name)
        left += values
    axes.set_title("Seconds of the step")
