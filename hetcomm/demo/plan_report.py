"""The planner's part of the demo's report: the layout, and predicted beside measured step times."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from hetcomm.demo.planning import Plan
from hetcomm.demo.report import bridge_bytes
from hetcomm.emulate import Cluster
from hetcomm.plan import Layout

UNSHAPED = (
    "Predictions are left out: they take the rates of the cluster's links, and no link is shaped "
    "here."
)


def describe_layout(layout: Layout, cluster: Cluster) -> list[str]:
    """Two plain lines: the layers of each stage and its ranks; micro-batches and states."""
    stages = []
    for stage in layout.stages:
        ranks = sorted(rank for replica in stage.replicas for rank in replica.ranks)
        hosts = dict.fromkeys(cluster.hosts[cluster.placement[rank]].name for rank in ranks)
        spans = " and ".join(_span(first, end) for first, end in stage.chunks)
        which = ", ".join(map(str, ranks))
        noun = "rank" if len(ranks) == 1 else "ranks"
        layers = "layer" if stage.layers == 1 else "layers"
        stages.append(f"{layers} {spans} on {noun} {which} ({', '.join(hosts)})")
    counts = " or ".join(map(str, sorted(set(layout.micro_batches))))
    several = counts != "1"
    is_whole = layout.replicas == 1 or layout.optimizer_states == "rank"
    states = "whole" if is_whole else "divided among replicas"
    schedule = f", schedule {layout.schedule}" if len(layout.stages) > 1 else ""
    return [
        "; ".join(stages),
        f"{counts} micro-batch{'es' * several} of {layout.micro_batch} on each of "
        f"{layout.replicas} replica{'s' * (layout.replicas > 1)}{schedule}; optimizer states "
        f"{states}",
    ]


def _span(first: int, end: int) -> str:
    return str(first) if end - first == 1 else f"{first} to {end - 1}"


def how_measured(plan: Plan) -> str:
    """What the predictions rest on."""
    text = "Measured before: the model's own layers by hetcomm profile, first on the ranks of one "
    text += "host, then on all ranks at once"
    text += "; islands and links by hetcomm tune. " if plan.is_shaped else ". "
    if plan.processors is None:
        return text + "Each rank has a processor of its own."
    ranks = plan.cluster.ranks
    return text + f"The {ranks} ranks share {plan.processors:.2f} processors."


def verdict(plan: Plan) -> str:
    """Whether the planned layout is the fastest."""
    slower = [case.training.layout for case in plan.by_hand if plan.speed_up(case) < 1]
    if slower:
        return f"The planned layout is slower than {' and '.join(slower)} here: {plan.speed_ups}."
    return f"The planned layout is the fastest: {plan.speed_ups}."


def plan_table(plan: Plan) -> Table:
    """Predicted and measured step times."""
    table = Table(title="Planned by hetcomm, trained on hetcomm", title_justify="left")
    table.add_column("layout", no_wrap=True)
    for heading in ("predicted", "measured", "error", "over the bridge\nper step", "plan is"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case in plan.every:
        own = case is plan.planned
        table.add_row(
            case.training.layout,
            f"{case.predicted * 1e3:.0f} ms" if plan.is_shaped else "-",
            f"{case.measured * 1e3:.0f} ms",
            f"{case.error:+.0%}" if plan.is_shaped else "-",
            bridge_bytes(case.training),
            "" if own else f"{plan.speed_up(case):.2f}x as fast",
        )
    return table


def render_plan(plan: Plan) -> RenderableType:
    """The layout in two lines, how it was predicted, the table and the verdict."""
    stages, *others = describe_layout(plan.planned.layout, plan.cluster)
    lines = [f"Planned layout: {stages};", *others, how_measured(plan)]
    return Group(*lines, plan_table(plan), *([] if plan.is_shaped else [UNSHAPED]), verdict(plan))


def plan_facts(plan: Plan) -> dict[str, Any]:
    """For JSON."""
    return {
        "layout": describe_layout(plan.planned.layout, plan.cluster),
        "processors": plan.processors,
        "gap": plan.gap,
        "largest_loss_difference": plan.comparison.largest_difference,
        "tolerance": plan.comparison.tolerance,
        "agrees": plan.comparison.agrees,
        "losses": plan.planned.training.losses,
        "seconds": plan.planned.training.seconds,
        "median_network_bytes": plan.planned.training.step_bytes,
        "steps": {
            case.training.layout: {
                "predicted_seconds": case.predicted if plan.is_shaped else None,
                "measured_seconds": case.measured,
                "error": case.error if plan.is_shaped else None,
                "speed_up_of_plan": plan.speed_up(case),
            }
            for case in plan.every
        },
    }
