"""The picture of a layout: stages over hosts, and where the time of each stage goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from hetcomm import _core
from hetcomm.demo.plot import STYLE, pyplot
from hetcomm.files import writing
from hetcomm.plan.search.propose import Proposal
from hetcomm.plan.search.show import PARTS, describe_shape

IDLE = (0.93, 0.93, 0.94, 1.0)
PART_COLOURS = ("#0b6e8f", "#a9b1ba", "#c4622d", "#6a8f3c", "#d9dee3")
ROWS = 32  # hosts in one column of the picture


def write_picture(path: Path, proposal: Proposal) -> None:
    """Writes a PNG. Raises hetcomm.InvalidArgumentError if the file cannot be written."""
    stages = len(proposal.best.layout.stages)
    hosts = len(proposal.cluster.hosts)
    height = 2.2 + 0.24 * min(hosts, ROWS) + 0.26 * stages
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(11, height), layout="constrained")
        rows = figure.subplots(
            2, 1, height_ratios=(min(hosts, ROWS) + 3, stages + 3), squeeze=False
        )[:, 0]
        best = proposal.best
        figure.suptitle(
            f"{_core.format_seconds(best.prediction.seconds)} per step: "
            f"{describe_shape(proposal, best)}",
            fontsize=11,
        )
        draw_hosts(rows[0], proposal)
        draw_parts(rows[1], proposal)
        try:
            with writing("--picture", path):
                figure.savefig(path, dpi=140)
        finally:
            pyplot.close(figure)


def draw_hosts(axes: Axes, proposal: Proposal) -> None:
    """A cell for each rank in the row of its host: its stage, by colour and number."""
    cluster, layout = proposal.cluster, proposal.best.layout
    stage_of = {
        rank: s
        for s, stage in enumerate(layout.stages)
        for replica in stage.replicas
        for rank in replica.ranks
    }
    members: list[list[int]] = [[] for _ in cluster.hosts]
    for rank, place in enumerate(cluster.placement):
        members[place].append(rank)
    widest = max(map(len, members))
    columns = -(-len(members) // ROWS)
    rows = min(len(members), ROWS)
    cells = np.ones((rows, columns * (widest + 1), 4))
    colours = colormaps["viridis"]
    several = max(len(layout.stages) - 1, 1)
    for place, ranks in enumerate(members):
        column, row = divmod(place, ROWS)
        for i, rank in enumerate(ranks):
            x = column * (widest + 1) + i
            stage = stage_of.get(rank)
            cells[row, x] = IDLE if stage is None else colours(0.1 + 0.85 * stage / several)
            if cells.shape[1] <= 48:
                dark = stage is not None and stage / several < 0.6
                text = "-" if stage is None else str(stage)
                axes.text(x, row, text, ha="center", va="center", fontsize=7,
                          color="white" if dark else "#3a4249")  # fmt: skip
    axes.imshow(cells, aspect="auto", interpolation="nearest")
    axes.set_title("The stage of each rank, by host")
    axes.set_yticks(range(rows), [host.name for host in cluster.hosts[:rows]], fontsize=7)
    firsts = [cluster.hosts[column * ROWS].name for column in range(columns)]
    starts = [column * (widest + 1) for column in range(columns)]
    axes.set_xticks(starts, [f"from {name}" for name in firsts], ha="left", fontsize=7)
    axes.tick_params(length=0)
    axes.grid(visible=False)


def draw_parts(axes: Axes, proposal: Proposal) -> None:
    """A bar for each stage: the seconds of the step by part, of its first replica."""
    prediction, stages = proposal.best.prediction, range(len(proposal.best.layout.stages))
    left = np.zeros(len(stages))
    for (name, members), colour in zip(PARTS.items(), PART_COLOURS, strict=True):
        values = np.array(
            [sum(prediction.parts[s, 0].get(each, 0.0) for each in members) for s in stages]
        )
        axes.barh(list(stages), values, left=left, color=colour, label=name, height=0.8)
        left += values
    axes.set_yticks(list(stages), [f"stage {s}" for s in stages], fontsize=7)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_title("Where the step's time goes, in seconds")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
