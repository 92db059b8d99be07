"""Where a search of all pools begins: each pool alone, whole pools, or a smaller cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hetcomm.plan.search.best_first import Found
from hetcomm.plan.search.fill import Filling
from hetcomm.plan.search.nodes import Candidate, Search
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.search import Priced, PricedLayout, fitting, predicted, search
from hetcomm.plan.search.settings import Settings
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.space import divisors
from hetcomm.plan.search.terms import Terms

# Shares of a search's time.
ALONE, FULL, SMALLER = 0.3, 0.2, 0.6
# Pools from which on layouts of whole pools are searched first.
SEVERAL = 3
# Ranks from which on a smaller cluster is searched first.
MANY = 1024


@dataclass(frozen=True)
class Effort:
    """See Limits."""

    top: int
    tolerance: float
    seconds: float


def search_from_starts(root: Search, effort: Effort) -> Found[PricedLayout]:
    """The best layouts; none of the starts is better."""
    end = time.monotonic() + effort.seconds
    times = scale(root)
    if times > 1:
        known = list(_enlarged(root, times, replace(effort, seconds=effort.seconds * SMALLER)))
    else:
        known = _full(root, _alone(root, effort), effort)
    left = max(0.0, end - time.monotonic())
    return search(root, known=known, top=effort.top, tolerance=effort.tolerance, seconds=left)


def _alone(root: Search, effort: Effort) -> list[Priced]:
    """Of each pool, with all others idle."""
    known: list[Priced] = []
    pools = root.space.pools
    if len(pools) > 1 and not root.space.every_rank:
        for pool in pools:
            alone = replace(root, space=replace(root.space, pools=(pool,)))
            seconds = effort.seconds * ALONE / len(pools)
            known += search(alone, top=effort.top, tolerance=effort.tolerance, seconds=seconds).best
    return known


def _full(root: Search, known: list[Priced], effort: Effort) -> list[Priced]:
    """With layouts in which pools give all their ranks, or none."""
    if len(root.space.pools) < SEVERAL:
        return known
    full = replace(root, space=replace(root.space, full=True))
    seconds = effort.seconds * FULL
    return search(
        full, known=known, top=effort.top, tolerance=effort.tolerance, seconds=seconds
    ).best


def scale(root: Search) -> int:
    """How many times a smaller cluster with fewer than MANY ranks is the cluster; 1: none is."""
    problem, space = root.terms.problem, root.space
    ranks = sum(pool.ranks for pool in problem.pools)
    hosts = [len(pool.hosts) for pool in problem.pools]
    if problem.profile.processors is not None or not all(pool.uniform for pool in problem.pools):
        return 1
    for times in divisors(space.batch):
        whole = not any(count % times for count in hosts)
        if ranks <= MANY * times and min(hosts) >= times and (whole or not space.every_rank):
            return times
    return 1


def _enlarged(root: Search, times: int, effort: Effort) -> Iterator[Priced]:
    """Layouts of a smaller cluster with so many times the replicas."""
    problem, space = root.terms.problem, root.space
    pools = [replace(pool, hosts=pool.hosts[: len(pool.hosts) // times]) for pool in problem.pools]
    smaller = Search(
        Terms(replace(problem, pools=pools)),
        replace(space, batch=space.batch // times),
        root.settings_space,
    )
    for _, priced in search_from_starts(smaller, effort).best:
        shape, settings = _shape_of(priced.candidate.shape, times), priced.candidate.settings
        counts = tuple(stage.layers for stage in priced.layout.stages)
        found = _priced(root, shape, settings, counts)
        if found is not None:
            yield found


def _shape_of(shape: Shape, times: int) -> Shape:
    """With so many times the replicas of each part."""

    def of(part: Part) -> Part:
        return replace(part, count=part.count * times)

    shares: list[int] = []
    first = 0
    for part in shape.stages[0] if shape.shares else ():
        shares += shape.shares[first : first + part.count] * times
        first += part.count
    stages = tuple(tuple(map(of, parts)) for parts in shape.stages)
    return replace(shape, stages=stages, shares=tuple(shares))


def _priced(
    root: Search, shape: Shape, settings: Settings, counts: tuple[int, ...]
) -> Priced | None:
    """With the narrowest level of weights that fits: more ranks share each part."""
    problem, levels = root.terms.problem, root.settings_space.levels
    for weights in levels[: levels.index(settings.weights) + 1]:
        narrower = replace(settings, weights=weights)
        layout = fitting(problem, root.layout(shape, narrower, counts), levels)
        if layout is not None:
            filling = Filling(root.terms, Probes(root.terms, shape), [narrower])
            candidate = Candidate(root, shape, filling, 0, 0.0, counts)
            prediction = predicted(problem, layout)
            return prediction.seconds, PricedLayout(candidate, layout, prediction)
    return None
