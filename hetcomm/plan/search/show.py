"""A proposal as text for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from json import loads
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from hetcomm import _core
from hetcomm.plan.layout import Layout
from hetcomm.plan.prediction.predict import Prediction
from hetcomm.plan.search.pools import names
from hetcomm.plan.search.propose import Proposal
from hetcomm.plan.search.search import PricedLayout
from hetcomm.topo_page import format_ranks

# Parts of a prediction, as people call them together.
PARTS = {
    "computing": ("forward", "backward", "weights"),
    "bubbles and transfers": ("waiting", "receive"),
    "gradients": ("barrier", "gradients"),
    "optimizer": ("optimizer", "updates"),
    "waiting for other stages": ("end",),
}


def render(proposal: Proposal) -> RenderableType:
    """The page for people."""
    best, layout = proposal.best, proposal.best.layout
    rate = proposal.samples_per_second(best)
    lines = [
        f"[bold]{_seconds(best.prediction.seconds)} per step[/] of {layout.batch} samples: "
        f"{rate:.4g} samples/s, {best.prediction.tflops:.3g} TFLOP/s per device",
        f"{rate / proposal.upper_bound:.1%} of the upper bound, {proposal.upper_bound:.4g} "
        "samples/s: all devices at the best rate of their kind",
        _about(layout),
        _ended(proposal),
    ]
    if best.prediction.error:
        lines.append(
            f"The profile states errors up to {best.prediction.error:.0%}: it did not measure "
            "these shapes."
        )
    if proposal.idle:
        hosts = hosts_of(proposal, proposal.idle)
        lines.append(
            f"[bold]Idle:[/] {escape(format_ranks(proposal.idle))} on {escape(hosts)}. A job has "
            "no idle ranks: delete them from the cluster file and plan again, or give --every-rank."
        )
    parts: list[RenderableType] = ["\n".join(lines), "", stage_table(proposal)]
    if len(proposal.layouts) > 1:
        parts.append(runner_up_table(proposal))
    return Group(*parts)


def _about(layout: Layout) -> str:
    words = [
        layout.schedule,
        f"{' or '.join(map(str, sorted(set(layout.micro_batches))))} micro-batches of "
        f"{layout.micro_batch}",
        f"{layout.replicas} replicas",
        "recompute" if layout.recompute else "no recompute",
        f"levels of weights, gradients, states: {layout.weights}, {layout.gradients}, "
        f"{layout.optimizer_states}",
        f"codec {layout.codec}",
    ]
    return ", ".join(words)


def _ended(proposal: Proposal) -> str:
    found = proposal.found
    looked = f"{found.priced} layouts predicted, {found.opened} sets opened"
    if found.cut:
        return (
            f"[bold]The time limit cut the search:[/] another layout may be up to {found.gap:.1%} "
            f"faster ({looked})."
        )
    return f"No layout of the space is more than {found.gap:.1%} faster ({looked})."


def stage_table(proposal: Proposal) -> Table:
    """One row for each stage. waits: the share of the step, of the first replica."""
    table = _table(
        "Stages", ("stage", "on"), ("ranks", "tensor x context", "layers", "GB", "waits")
    )
    priced, problem = proposal.best, proposal.search.terms.problem
    kinds = names(problem.pools)
    for s, stage in enumerate(priced.layout.stages):
        ranks = [rank for replica in stage.replicas for rank in replica.ranks]
        pools = sorted({part.pool for part in priced.candidate.shape.stages[s]})
        degrees = sorted({f"{replica.tensor} x {replica.context}" for replica in stage.replicas})
        memory = max(priced.prediction.memory[rank].total for rank in ranks)
        limit = min(proposal.limits[problem.devices[rank]] for rank in ranks)
        waits = priced.prediction.parts[s, 0]["waiting"] / priced.prediction.seconds
        table.add_row(
            str(s),
            escape(f"{', '.join(kinds[pool] for pool in pools)}: {hosts_of(proposal, ranks)}"),
            str(len(ranks)),
            ", ".join(degrees),
            " + ".join(str(end - first) for first, end in stage.chunks),
            f"{memory / 1e9:.1f} of {limit / 1e9:.0f}",
            f"{waits:.0%}",
        )
    return table


def runner_up_table(proposal: Proposal) -> Table:
    """The best layouts of other shapes, and the part of the step in which they lose most."""
    table = _table("Runners-up", ("layout", "loses by"), ("step", "GB"))
    best = proposal.best
    for priced in proposal.layouts[1:]:
        part, seconds = _largest_loss(best.prediction, priced.prediction)
        loss = priced.prediction.seconds / best.prediction.seconds - 1
        table.add_row(
            escape(describe_shape(proposal, priced)),
            f"{loss:.1%}: {part}, {_seconds(seconds)} more",
            _seconds(priced.prediction.seconds),
            f"{priced.prediction.most_memory / 1e9:.1f}",
        )
    return table


def _table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """Narrow terminals wrap the cells."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    return table


def describe_shape(proposal: Proposal, priced: PricedLayout) -> str:
    """The runs of stages: "4 stages on A100 x 2 tensor, 12 on V100; 32 replicas of 2"."""
    kinds = names(proposal.search.terms.problem.pools)
    runs = []
    for parts, count in priced.candidate.shape.runs:
        on = " and ".join(
            f"{kinds[part.pool]}"
            + (f" by {part.tensor}" if part.tensor > 1 else "")
            + (f" x {part.context}" if part.context > 1 else "")
            for part in parts
        )
        runs.append(f"{count} on {on}")
    layout = priced.layout
    return (
        f"{' then '.join(runs)}; {layout.replicas} replicas, micro-batch {layout.micro_batch}, "
        f"{layout.schedule}{', recompute' if layout.recompute else ''}"
    )


def average_parts(prediction: Prediction) -> dict[str, float]:
    """Seconds of the step by part, the mean over stages and replicas; they add up to the step."""
    count = len(prediction.parts)
    return {
        name: sum(parts.get(each, 0.0) for parts in prediction.parts.values() for each in members)
        / count
        for name, members in PARTS.items()
    }


def _largest_loss(best: Prediction, other: Prediction) -> tuple[str, float]:
    ours, theirs = average_parts(best), average_parts(other)
    part = max(ours, key=lambda name: theirs[name] - ours[name])
    return part, theirs[part] - ours[part]


def hosts_of(proposal: Proposal, ranks: list[int]) -> str:
    """The hosts of ranks: the first and the last name, in the order of the file."""
    cluster = proposal.cluster
    places = sorted({cluster.placement[rank] for rank in ranks})
    first, last = cluster.hosts[places[0]].name, cluster.hosts[places[-1]].name
    if len(places) == 1:
        return first
    whole = places == list(range(places[0], places[-1] + 1))
    return f"{first} to {last}" if whole else f"{len(places)} hosts of {first} to {last}"


def describe(proposal: Proposal) -> dict[str, Any]:
    """The same facts for programs; seconds, bytes, and samples per second."""

    def of(priced: PricedLayout) -> dict[str, Any]:
        return {
            "seconds": priced.prediction.seconds,
            "samples_per_second": proposal.samples_per_second(priced),
            "tflops_per_device": priced.prediction.tflops,
            "profile_error": priced.prediction.error,
            "parts": average_parts(priced.prediction),
            "memory": {rank: each.total for rank, each in priced.prediction.memory.items()},
            "layout": loads(priced.layout.text()),
        }

    found = proposal.found
    return {
        "best": of(proposal.best),
        "runners_up": [of(priced) for priced in proposal.layouts[1:]],
        "upper_bound": proposal.upper_bound,
        "share_of_upper_bound": proposal.samples_per_second(proposal.best) / proposal.upper_bound,
        "memory_limits": proposal.limits,
        "idle": proposal.idle,
        "search": {
            "least_seconds": found.bound,
            "gap": found.gap,
            "cut": found.cut,
            "predicted": found.priced,
            "opened": found.opened,
        },
    }


def _seconds(seconds: float) -> str:
    text: str = _core.format_seconds(seconds)
    return text
