"""The planner's row of the demo's picture: predicted beside measured step times, and the layout."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from hetcomm.demo.plan_report import describe_layout
from hetcomm.demo.planning import Plan
from hetcomm.demo.plot import BASELINE_COLOUR, CANDIDATE_COLOUR, CODEC_COLOURS, Bar, draw_bars


def draw_plan(figure: Any, plan: Plan) -> None:
    """Two panels in a part of a figure."""
    times, layers = figure.subplots(1, 2)
    draw_steps(times, plan)
    draw_layout(layers, plan)


def draw_steps(axes: Axes, plan: Plan) -> None:
    """Of each layout, the predicted time and the median of the measured ones."""
    names = [case.training.layout for case in plan.every]
    shift = 0.19 if plan.is_shaped else 0.0
    bars = [
        Bar(case.training, place + shift, CANDIDATE_COLOUR, None if place else "measured")
        for place, case in enumerate(plan.every)
    ]
    if plan.is_shaped:
        for place, case in enumerate(plan.every):
            seconds = case.predicted * 1e3
            axes.bar(
                place - shift, seconds, width=0.34, color=BASELINE_COLOUR,
                label=None if place else "predicted",
            )  # fmt: skip
            axes.annotate(
                f"{seconds:.0f}\n({case.error:+.0%})", (place - shift, seconds), xytext=(0, 4),
                textcoords="offset points", horizontalalignment="center",
            )  # fmt: skip
    draw_bars(
        axes,
        bars,
        names,
        lambda training: [seconds * 1e3 for seconds in training.seconds],
        "milliseconds per step",
    )
    axes.set_title(f"Planned: {plan.speed_ups}")


def draw_layout(axes: Axes, plan: Plan) -> None:
    """The layers of each rank, by the colour of the stage."""
    layout, cluster = plan.planned.layout, plan.cluster
    for s, stage in enumerate(layout.stages):
        for replica in stage.replicas:
            for rank in replica.ranks:
                for first, end in stage.chunks:
                    colour = CODEC_COLOURS[s % len(CODEC_COLOURS)]
                    axes.add_patch(
                        Rectangle(
                            (first - 0.45, rank - 0.36), end - first - 0.1, 0.72, color=colour
                        )
                    )
    names = ["embedding", *(f"block {n}" for n in range(1, layout.layers - 1)), "head"]
    axes.set_xticks(range(layout.layers), names)
    places = [cluster.hosts[place].name for place in cluster.placement]
    axes.set_yticks(
        range(len(places)), [f"{host}, rank {rank}" for rank, host in enumerate(places)]
    )
    axes.set_xlim(-0.6, layout.layers - 0.4)
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_title("Layers of each rank")
    axes.set_xlabel(fill(describe_layout(layout, cluster)[-1], width=60), fontsize=8)
