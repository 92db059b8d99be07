"""A plain search for layouts, beside which the one of hetcomm plan is measured.

It knows predictions alone, and no bounds. Its points are layouts in which pools serve consecutive
stages. It begins with random points, keeps the best few, and looks at random changes of these. What
lacks memory is worse than all that fits. Without progress it begins anew, and keeps the best point.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from hetcomm.plan.layout import Layout
from hetcomm.plan.search.nodes import Search
from hetcomm.plan.search.search import fitting, lacking, predicted
from hetcomm.plan.search.settings import Settings
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.space import divisors

WIDTH, CHANGES, PATIENCE = 8, 4, 12  # points kept, changes of each, rounds without progress
Score = tuple[float, float]  # bytes that are lacking, seconds
OUTSIDE = (1.0, 0.0)  # of the planner's space, which has the narrowest level of weights that fits


@dataclass(frozen=True)
class Run:
    """Consecutive stages on a pool."""

    pool: int
    tensor: int
    stages: int


@dataclass(frozen=True)
class Point:
    """counts: layers of the stages; none: in proportion to their speeds."""

    runs: tuple[Run, ...]
    replicas: int
    micro_batch: int
    settings: Settings | None = None
    counts: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        return sum(run.stages for run in self.runs)


@dataclass
class Result:
    """priced: the number of predictions."""

    seconds: float
    point: Point | None
    priced: int


def divided(layers: int, speeds: Sequence[float], fewest: int = 1) -> tuple[int, ...]:
    """Layers of stages in proportion to their speeds."""
    counts = [fewest] * len(speeds)
    for _ in range(layers - sum(counts)):
        counts[min(range(len(speeds)), key=lambda s: (counts[s] + 1) / speeds[s])] += 1
    return tuple(counts)


class Beam:
    def __init__(self, root: Search, seed: int = 0) -> None:
        self.root, self.space, self.problem = root, root.space, root.terms.problem
        self.random, self.known = Random(seed), dict[Point, Score]()
        self.priced = 0

    def search(self, seconds: float) -> Result:
        """The best point after so many seconds of this process."""
        end = time.process_time() + seconds
        best: tuple[Score, Point | None] = ((float("inf"),) * 2, None)
        while time.process_time() < end:
            self.known.clear()
            starts = filter(None, (self.start() for _ in range(8 * WIDTH)))
            beam = self.best([], list(starts), end)
            stale = 0
            while beam and stale < PATIENCE and time.process_time() < end:
                before = beam[0][0]
                changed = [self.change(p) for _, p in beam for _ in range(CHANGES)]
                beam = self.best(beam, [p for p in changed if p], end)
                stale = 0 if beam[0][0] < before else stale + 1
            best = min([best, *beam[:1]], key=lambda each: each[0])
        fits = best[0][0] == 0
        return Result(best[0][1] if fits else float("inf"), best[1] if fits else None, self.priced)

    def best(
        self, beam: list[tuple[Score, Point]], points: list[Point], end: float
    ) -> list[tuple[Score, Point]]:
        for point in points:
            if point not in self.known and time.process_time() < end:
                self.known[point] = score = self.score(point)
                beam = [*beam, (score, point)]
        return sorted(beam, key=lambda each: each[0])[:WIDTH]

    def score(self, point: Point) -> Score:
        layout = self.layout(point)
        if lack := lacking(self.problem, layout):
            return max(lack.values()), 0.0
        if fitting(self.problem, layout, self.root.settings_space.levels) is None:
            return OUTSIDE
        self.priced += 1
        return 0.0, predicted(self.problem, layout).seconds

    def shape(self, point: Point) -> Shape:
        stages = tuple(
            (Part(run.pool, run.tensor, 1, point.replicas),)
            for run in point.runs
            for _ in range(run.stages)
        )
        count = self.space.batch // (point.micro_batch * point.replicas)
        return Shape(stages, point.micro_batch, (count,))

    def counts(self, point: Point) -> tuple[int, ...]:
        assert point.settings
        if point.counts:
            return point.counts
        speeds: list[float] = []
        for run in point.runs:
            block = self.root.terms.block_seconds(run.pool, run.tensor, 1, point.micro_batch)
            assert block
            speeds += [1 / block] * run.stages
        return divided(self.space.layers, speeds, point.settings.chunks)

    def layout(self, point: Point) -> Layout:
        assert point.settings
        return self.root.layout(self.shape(point), point.settings, self.counts(point))

    def start(self) -> Point | None:
        random, space = self.random, self.space
        pools = random.sample(space.pools, random.randint(1, len(space.pools)))
        tensors = [random.choice(space.tensors) for _ in pools]
        micro_batch = random.choice(
            [each for each in space.micro_batches if space.batch % each == 0]
        )
        replicas = random.choice(divisors(space.batch // micro_batch))
        runs = []
        for pool, tensor in zip(pools, tensors, strict=True):
            most = self.problem.pools[pool].capacity(tensor) // replicas
            few = random.randint(1, most) if most and random.random() < 0.3 else most
            runs.append(Run(pool, tensor, min(few, space.layers)))
        return self.settled(Point(tuple(runs), replicas, micro_batch))

    def settled(self, point: Point) -> Point | None:
        """With settings that are possible, near those it has; None if there are none."""
        space, pools = self.space, self.problem.pools
        if not point.runs or not 1 <= point.stages <= space.layers:
            return None
        if space.batch % (point.replicas * point.micro_batch):
            return None
        for run in point.runs:
            fits = run.stages * point.replicas <= pools[run.pool].capacity(run.tensor)
            times = self.root.terms.block_seconds(run.pool, run.tensor, 1, point.micro_batch)
            if run.stages < 1 or not fits or times is None:
                return None
        if space.tied and point.runs[0].tensor != point.runs[-1].tensor:
            return None
        options = self.root.settings(self.shape(point))
        if point.settings in options:
            return point
        return replace(point, settings=self.random.choice(options), counts=()) if options else None

    def change(self, point: Point) -> Point | None:
        """Another point, by one change of some kind."""
        random = self.random
        changes = (self.of_pools, self.of_run, self.of_degrees, self.of_settings, self.of_layers)
        return self.settled(random.choice(changes)(point))

    def of_pools(self, point: Point) -> Point:
        """Pools in another order, one less or one more."""
        random, runs = self.random, list(point.runs)
        absent = sorted(set(self.space.pools) - {run.pool for run in runs})
        what = random.choice(("order", "less", "more"))
        if what == "more" and absent:
            pool, tensor = random.choice(absent), random.choice(self.space.tensors)
            most = self.problem.pools[pool].capacity(tensor) // point.replicas
            runs.insert(random.randint(0, len(runs)), Run(pool, tensor, most))
        elif what == "less" and len(runs) > 1:
            runs.pop(random.randrange(len(runs)))
        else:
            random.shuffle(runs)
        return replace(point, runs=tuple(runs), counts=())

    def of_run(self, point: Point) -> Point:
        """A pool with another tensor degree or another number of stages."""
        random, runs = self.random, list(point.runs)
        place = random.randrange(len(runs))
        run = runs[place]
        tensor = random.choice(self.space.tensors) if random.random() < 0.5 else run.tensor
        most = self.problem.pools[run.pool].capacity(tensor) // point.replicas
        near = [run.stages - 1, run.stages, run.stages + 1, most, run.stages * run.tensor // tensor]
        runs[place] = Run(run.pool, tensor, random.choice(near))
        return replace(point, runs=tuple(runs), counts=())

    def of_degrees(self, point: Point) -> Point:
        """Other replicas with as many stages as fit then, or another micro-batch."""
        random = self.random
        if random.random() < 0.4:
            return replace(point, micro_batch=random.choice(self.space.micro_batches))
        every = divisors(self.space.batch // point.micro_batch)
        place = every.index(point.replicas) + random.choice((-2, -1, 1, 2))
        replicas = every[max(0, min(place, len(every) - 1))]
        runs = [
            replace(run, stages=self.problem.pools[run.pool].capacity(run.tensor) // replicas)
            for run in point.runs
        ]
        return replace(point, replicas=replicas, runs=tuple(runs), counts=())

    def of_settings(self, point: Point) -> Point:
        """Other settings, which differ in one field if some do."""
        options = self.root.settings(self.shape(point))
        names = ("schedule", "chunks", "recompute", "weights", "states", "codec")
        unlike = [
            sum(getattr(each, name) != getattr(point.settings, name) for name in names)
            for each in options
        ]
        near = [each for each, count in zip(options, unlike, strict=True) if count in (1, 2)]
        settings = self.random.choice(near or options)
        same = point.settings and settings.chunks == point.settings.chunks
        return replace(point, settings=settings, counts=point.counts if same else ())

    def of_layers(self, point: Point) -> Point:
        """A layer on another stage."""
        counts = list(self.counts(point))
        assert point.settings
        source, target = (self.random.randrange(len(counts)) for _ in range(2))
        if counts[source] > point.settings.chunks:
            counts[source] -= 1
            counts[target] += 1
        return replace(point, counts=tuple(counts))
