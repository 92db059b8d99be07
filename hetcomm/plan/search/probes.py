"""What the network and the profile charge a shape, before its layers are divided."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import numpy as np

from hetcomm.plan.layout import Replica, Stage
from hetcomm.plan.prediction.costs import rounds
from hetcomm.plan.prediction.network import levels_of
from hetcomm.plan.prediction.synchronize import reduction_seconds, waves
from hetcomm.plan.search.division import Floats
from hetcomm.plan.search.settings import Settings
from hetcomm.plan.search.shapes import Shape
from hetcomm.plan.search.terms import Terms

Value = TypeVar("Value")


class Probes:
    """Prices of a shape's ranks, computed once each. None is more than the prediction's.

    A probe prices the first stage of a run. It holds for the run's other stages if these lie alike
    on their hosts.
    """

    def __init__(self, terms: Terms, shape: Shape, batch: int) -> None:
        self.terms, self.shape, self.batch = terms, shape, batch
        # Of pipelines with unlike settings, which share most of them.
        self.tables: dict[tuple[object, ...], Floats] = {}

    @cached_property
    def run_of(self) -> list[int]:
        """The run of each stage."""
        return [run for run, (_, count) in enumerate(self.shape.runs) for _ in range(count)]

    @cached_property
    def probed(self) -> list[bool]:
        """Of each stage, whether the prices of its run hold for it."""
        first = set(self.shape.first_stages)
        return [s in first or self.alike[run] for s, run in enumerate(self.run_of)]

    @cached_property
    def way_in(self) -> Floats:
        """By stage, seconds in transfers of the first activation on its way to the stage."""
        return np.concatenate(([0.0], np.cumsum(self.transfers)))

    @cached_property
    def replicas(self) -> list[tuple[Replica, ...]]:
        """Of each stage."""
        return self.shape.place(self.terms.problem.pools)

    @cached_property
    def alike(self) -> list[bool]:
        """Of each run: whether its stages lie alike on their hosts."""
        found = []
        for parts, count in self.shape.runs:
            good = True
            for part in parts:
                pool = self.terms.problem.pools[part.pool]
                step = part.width * (part.count if self.shape.across else count)
                inside = self.shape.across and pool.widest % step == 0
                good &= pool.uniform and (step % pool.widest == 0 or inside)
            found.append(good or count == 1)
        return found

    @cached_property
    def transfers(self) -> Floats:
        """Seconds of an activation to the next stage, or of a gradient back if that is faster, of
        the first replica while all replicas send."""
        runtime, model = self.terms.problem.runtime, self.terms.problem.model
        size = model.output_bytes() * self.shape.micro_batch
        found = []
        for source, target in zip(self.replicas, self.replicas[1:], strict=False):
            both = []
            for senders, receivers in ((source, target), (target, source)):
                ends = [(a.ranks, b.ranks) for a, b in zip(senders, receivers, strict=True)]
                lanes = math.lcm(len(ends[0][0]), len(ends[0][1]))
                share = lanes if runtime.parts else senders[0].context
                every = [rounds(a, b, math.lcm(len(a), len(b))) for a, b in ends]
                both.append(self._waves(every, -(-size // share)))
            found.append(min(both))
        return np.asarray(found)

    def _waves(self, every: list[list[list[tuple[int, int]]]], size: int) -> float:
        """Rounds of all replicas together, as many as the first replica has."""
        network = self.terms.problem.network
        return sum(
            network.transfer([pair for each in every if i < len(each) for pair in each[i]], size)
            for i in range(len(every[0]))
        )

    def share(self, run: int, level: str) -> int:
        """The fewest ranks that share what a level partitions, on the run's first stage."""
        if level == "rank":
            return 1
        network = self.terms.problem.network

        def fewest() -> int:
            every = (levels_of(network, group, level) for group in self._groups(run))
            return min(len(part) for parts in every for part in parts)

        return self.once(run, ("share", level), fewest)

    def gather(self, run: int, level: str) -> Floats:
        """By layer, seconds to gather its weights in each pass of the run's first stage."""
        model, network = self.terms.problem.model, self.terms.problem.network

        def seconds() -> Floats:
            parts = [
                each for group in self._groups(run) for each in levels_of(network, group, level)
            ]
            tensor = max(part.tensor for part in self.shape.runs[run][0])
            found = {
                kind: network.collective(
                    "all_gather", parts, model.parameters(kind, tensor) * model.weight_bytes
                )
                for kind in dict.fromkeys(self.terms.kinds)
            }
            return np.array([found[kind] for kind in self.terms.kinds])

        return self.once(run, ("gather", level), seconds)

    def reduction(self, run: int, settings: Settings, parameters: Floats) -> Floats:
        """Seconds to reduce the gradients of so many parameters, at least. More take no less.

        Prices of some numbers of blocks are known; between them the lower one counts.
        """
        found = np.zeros_like(parameters, dtype=np.float64)
        for known in (count * int(parameters[1, 2]) for count in self._samples):
            seconds = self._reduction(run, known, settings)
            found = np.maximum(found, np.where(parameters >= known, seconds, 0.0))
        return found

    def _reduction(self, run: int, parameters: int, settings: Settings) -> float:
        problem = self.terms.problem
        levels = (settings.weights, settings.states, settings.codec)
        every = self.once(run, ("waves",), lambda: waves(self._groups(run)))
        return self.once(
            run,
            ("reduction", parameters, *levels),
            lambda: sum(
                reduction_seconds(problem.model, problem.network, wave, parameters, *levels)
                for wave in every
            ),
        )

    def _groups(self, run: int) -> list[list[int]]:
        """Of the first stage of a run, the ranks that hold the same weights."""
        stage = self.shape.first_stages[run]
        return self.once(run, ("groups",), Stage((), self.replicas[stage]).data_groups)

    def once(self, run: int, what: tuple[object, ...], compute: Callable[[], Value]) -> Value:
        """Computes what depends on the ranks of a run's first stage alone. Runs of equal parts have
        equal first stages in all shapes, because a pool serves one run."""
        parts, count = self.shape.runs[run]
        key = (parts, 0 if self.shape.across else count, *what)
        if key not in self.terms.probed:
            self.terms.probed[key] = compute()
        found: Value = self.terms.probed[key]
        return found

    @cached_property
    def _samples(self) -> list[int]:
        """Numbers of blocks, each an eighth more than the one before."""
        model = self.terms.problem.model
        counts, n = [], 1
        while n <= model.blocks:
            counts.append(n)
            n += max(1, n // 8)
        return counts
