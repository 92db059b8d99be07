"""The search for the best layout of a job: best-first by bounds that no prediction beats."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hetcomm.plan.layout import Layout, groups_of
from hetcomm.plan.prediction.memory import memory
from hetcomm.plan.prediction.network import levels_of
from hetcomm.plan.prediction.predict import Prediction, predict
from hetcomm.plan.search.best_first import Found, best_first
from hetcomm.plan.search.nodes import Candidate, Search
from hetcomm.plan.search.terms import Problem

# Divisions near a good one are tried while its step is at most this much longer than the best, at
# most so often.
PROMISING = 1.03
ROUNDS = 8


@dataclass(frozen=True)
class PricedLayout:
    """A layout with its prediction."""

    candidate: Candidate
    layout: Layout
    prediction: Prediction

    @property
    def shape(self) -> Hashable:
        """Layouts of equal parts in equal order are one choice for people."""
        return (self.candidate.shape.runs, self.candidate.shape.micro_batch)


Priced = tuple[float, PricedLayout]


def search(
    root: Search,
    *,
    known: Iterable[Priced] = (),
    top: int = 5,
    tolerance: float = 0.01,
    seconds: float = 60.0,
) -> Found[PricedLayout]:
    """The best layouts of the space, best first, of unlike shapes. known: of earlier searches.

    No layout of the space is faster than Found.bound.
    """
    known = list(known)
    pricing = Pricing(root, min((cost for cost, _ in known), default=float("inf")))
    return best_first(
        root.roots(),
        pricing.price,
        lambda priced: priced.shape,
        known=known,
        top=top,
        tolerance=tolerance,
        seconds=seconds,
    )


class Pricing:
    """Predictions of the layouts of candidates. least: seconds of the best layout so far."""

    def __init__(self, root: Search, least: float) -> None:
        self.root, self.least = root, least
        self.tried: dict[object, set[tuple[int, ...]]] = {}

    def price(self, candidate: Candidate) -> Priced | None:
        """The division of the layers that the relaxation gives, or a better one near it."""
        first = candidate.division()
        key = (candidate.shape, candidate.settings)
        tried = self.tried.setdefault(key, set())
        if first in tried:
            return None
        tried.add(first)
        best = self._of(candidate, first)
        for _ in range(0 if candidate.counts else ROUNDS):
            if best is None or best[0] > self.least * PROMISING:
                break
            others = [
                self._of(candidate, counts)
                for counts in _near(best[1], candidate.settings.chunks)
                if counts not in tried and not tried.add(counts)  # type: ignore[func-returns-value]
            ]
            better = min(filter(None, others), key=lambda each: each[0], default=None)
            if better is None or better[0] >= best[0]:
                break
            best = better
        if best is not None:
            self.least = min(self.least, best[0])
        return best

    def _of(self, candidate: Candidate, counts: tuple[int, ...]) -> Priced | None:
        problem = self.root.terms.problem
        layout = fitting(problem, candidate.layout(counts), self.root.settings_space.levels)
        if layout is None:
            return None
        priced = PricedLayout(candidate, layout, predicted(problem, layout))
        return priced.prediction.seconds, priced


def _near(priced: PricedLayout, chunks: int) -> Iterator[tuple[int, ...]]:
    """Divisions in which one of the two busiest stages leaves a layer to another one."""
    counts = [stage.layers for stage in priced.layout.stages]
    parts = priced.prediction.parts
    idle = [
        max(parts[s, r]["waiting"] + parts[s, r]["end"] for r in range(priced.layout.replicas))
        for s in range(len(counts))
    ]
    order = sorted(range(len(counts)), key=lambda s: idle[s])
    for source in order[:2]:
        for target in order[:-7:-1]:
            if source != target and counts[source] > chunks:
                moved = [*counts]
                moved[source] -= 1
                moved[target] += 1
                yield tuple(moved)


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
    groups = [group for stage in layout.stages for group in groups_of(stage.replicas)]
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
