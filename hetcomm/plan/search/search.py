"""The search for the best layout of a job: best-first by bounds that no prediction beats."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from hetcomm.plan.layout import Layout
from hetcomm.plan.prediction.memory import memory
from hetcomm.plan.prediction.network import levels_of
from hetcomm.plan.prediction.predict import Prediction, predict
from hetcomm.plan.search.best_first import Found, best_first
from hetcomm.plan.search.nodes import Candidate, Search
from hetcomm.plan.search.terms import Problem


@dataclass(frozen=True)
class PricedLayout:
    """A layout with its prediction."""

    candidate: Candidate
    layout: Layout
    prediction: Prediction


def search(
    root: Search, *, top: int = 5, tolerance: float = 0.01, seconds: float = 60.0
) -> Found[PricedLayout]:
    """The best layouts of the space, best first, of unlike shapes.

    No layout of the space is faster than (1 - tolerance) times the best one, unless the time limit
    cut the search; then Found.gap says how far away it may be.
    """
    problem = root.terms.problem

    def price(candidate: Candidate) -> tuple[float, PricedLayout] | None:
        layout = fitting(problem, candidate.layout, root.settings_space.levels)
        if layout is None:
            return None
        priced = PricedLayout(candidate, layout, predicted(problem, layout))
        return priced.prediction.seconds, priced

    return best_first(root.roots(), price, _shape, top=top, tolerance=tolerance, seconds=seconds)


def predicted(problem: Problem, layout: Layout) -> Prediction:
    return predict(
        problem.model, layout, problem.profile, problem.network, problem.devices, problem.runtime
    )


def fitting(problem: Problem, layout: Layout, levels: Sequence[str]) -> Layout | None:
    """The layout if it fits the devices' memory and no narrower level of weights does, else None.

    Divided weights are gathered for each pass, beside all other traffic. Also None for what
    hetcomm.plan refuses: fewer micro-batches of a replica than stages with torch's Schedule1F1B,
    and levels that divide a data group into unequal parts.
    """
    if layout.schedule == "1f1b" and min(layout.micro_batches) < len(layout.stages):
        return None
    if not _divides(problem, layout):
        return None
    for level in levels[: levels.index(layout.weights)]:
        narrower = replace(layout, weights=level)
        if _divides(problem, narrower) and not lacking(problem, narrower):
            return None
    return None if lacking(problem, layout) else layout


def _divides(problem: Problem, layout: Layout) -> bool:
    """Whether the levels divide each data group into parts of equal size."""
    named = {layout.weights, layout.gradients, layout.optimizer_states}
    groups = [ranks for s in range(len(layout.stages)) for ranks in layout.data_groups(s)]
    return all(
        len({len(part) for part in levels_of(problem.network, ranks, level)}) == 1
        for level in named - {"rank", "cluster"}
        for ranks in groups
    )


def lacking(problem: Problem, layout: Layout) -> dict[int, float]:
    """By rank, the bytes that the layout needs beyond the device's memory, where it does."""
    needed = memory(
        problem.model, layout, problem.network, problem.runtime, problem.devices, problem.profile
    )
    unlike = {id(each): each for each in needed.values()}  # many ranks share theirs
    totals = {name: each.total for name, each in unlike.items()}
    limits = {name: device.memory for name, device in problem.profile.devices.items()}
    over = {rank: totals[id(each)] - limits[problem.devices[rank]] for rank, each in needed.items()}
    return {rank: lack for rank, lack in over.items() if lack > 0}


def _shape(candidate: Candidate) -> Hashable:
    """Layouts of equal parts in equal order are one choice for people."""
    return (candidate.shape.runs, candidate.shape.micro_batch)
