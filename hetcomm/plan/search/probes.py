"""What the network and the profile charge a shape, before its layers are divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import TypeVar

import numpy as np

from hetcomm.plan.layout import Replica, Stage
from hetcomm.plan.prediction.costs import rounds
from hetcomm.plan.prediction.network import levels_of
from hetcomm.plan.prediction.synchronize import Reduction, hosts_of, waves
from hetcomm.plan.search.division import Floats
from hetcomm.plan.search.settings import Settings
from hetcomm.plan.search.shapes import Part, Shape, place
from hetcomm.plan.search.terms import Terms

Value = TypeVar("Value")
Parts = tuple[Part, ...]


class Probes:
    """Prices of a shape's ranks, computed once each. None is more than the prediction's.

    Stages of equal parts whose ranks lie alike on their hosts have equal prices in all shapes.
    """

    def __init__(self, terms: Terms, shape: Shape, batch: int) -> None:
        self.terms, self.shape, self.batch = terms, shape, batch

    @cached_property
    def keys(self) -> list[tuple[object, ...]]:
        """Of each stage, equal for equal prices."""
        return [
            self._known(
                ("key", parts, count, s, self.shape.across), partial(self._key, parts, count, s)
            )
            for parts, count in self.shape.runs
            for s in range(count)
        ]

    def _key(self, parts: Parts, count: int, place: int) -> tuple[object, ...]:
        """Of stages with these parts, those whose ranks lie alike on hosts and islands cost the
        same; place: in its run."""
        pools = self.terms.problem.pools
        if not all(pools[part.pool].uniform for part in parts):
            return (parts, count, place, self.shape.across)
        pattern = self._pattern(self._placed(parts, count)[place])
        known: dict[object, int] = self._known(("patterns",), dict)
        return (parts, known.setdefault((parts, *pattern), len(known)))

    @cached_property
    def replicas(self) -> list[tuple[Replica, ...]]:
        """Of each stage."""
        return [stage for parts, count in self.shape.runs for stage in self._placed(parts, count)]

    def _placed(self, parts: Parts, count: int) -> list[tuple[Replica, ...]]:
        across = self.shape.across
        return self._known(
            ("place", parts, count, across),
            lambda: place(self.terms.problem.pools, parts, count, across),
        )

    @cached_property
    def slowest(self) -> int:
        """The place of the parts whose pipelines take longest, in each stage."""
        seconds = [0.0] * len(self.shape.stages[0])
        for parts, count in self.shape.runs:
            for line, part in enumerate(parts):
                seconds[line] += count * sum(self.terms.block_passes(part, self.shape.micro_batch))
        return seconds.index(max(seconds))

    @cached_property
    def transfers(self) -> Floats:
        """Seconds of an activation to the next stage, or of a gradient back if that is faster,
        while all replicas send."""
        return np.asarray([min(each) for each in self._transfers])

    @cached_property
    def slower_transfers(self) -> Floats:
        """The same, if the slower one counts."""
        return np.asarray([max(each) for each in self._transfers])

    @cached_property
    def _transfers(self) -> list[list[float]]:
        ends = [(*run, s) for run in self.shape.runs for s in range(run[1])]
        return [
            self._known(
                ("transfer", *pair, self.shape.across, self.shape.micro_batch),
                partial(self._transfer, s, s + 1),
            )
            for s, pair in enumerate(pairwise(ends))
        ]

    @cached_property
    def wrap(self) -> float:
        """The same from the last stage to the first one's next chunk."""
        first, last = self.shape.runs[0], self.shape.runs[-1]
        pair = ((*last, last[1] - 1), (*first, 0))
        return min(
            self._known(
                ("transfer", *pair, self.shape.across, self.shape.micro_batch),
                partial(self._transfer, len(self.shape.stages) - 1, 0),
            )
        )

    def _transfer(self, stage: int, following: int) -> list[float]:
        """There and back. Ranks that lie alike on hosts send alike."""
        ends = [self.shape.stages[s] for s in (stage, following)]
        replicas = [replica for s in (stage, following) for replica in self.replicas[s]]
        pattern: tuple[object, ...] = (stage, following, self.shape)
        if all(self.terms.problem.pools[part.pool].uniform for parts in ends for part in parts):
            pattern = self._pattern(replicas)
        key = ("transfer of", *ends, pattern, self.shape.micro_batch)
        return self._known(key, lambda: self._transfer_of(stage, following))

    def _pattern(self, replicas: Sequence[Replica]) -> tuple[tuple[int, ...], ...]:
        """Equal for replicas whose ranks lie alike on hosts and islands."""
        domain = self.terms.problem.network.domain
        ranks = [rank for replica in replicas for rank in replica.ranks]
        found = []
        for level in ("host", "island"):
            first: dict[object, int] = {}
            found.append(tuple(first.setdefault(domain(r, level), len(first)) for r in ranks))
        return tuple(found)

    def _transfer_of(self, stage: int, following: int) -> list[float]:
        network, runtime = self.terms.problem.network, self.terms.problem.runtime
        size = self.terms.problem.model.output_bytes() * self.shape.micro_batch
        source, target = self.replicas[stage], self.replicas[following]
        found = []
        for senders, receivers in ((source, target), (target, source)):
            every, plans = [], set()
            for a, b in zip(senders, receivers, strict=True):
                lanes = math.lcm(len(a.ranks), len(b.ranks))
                every.append(rounds(a.ranks, b.ranks, lanes))
                plans.add((len(every[-1]), -(-size // (lanes if runtime.parts else a.context))))
            for count, part in plans:
                together = [
                    [pair for each in every if i < len(each) for pair in each[i]]
                    for i in range(count)
                ]
                found.append(sum(network.transfer(pairs, part) for pairs in together))
        return found

    def share(self, stage: int, level: str) -> int:
        """The fewest ranks that share what a level partitions."""
        if level == "rank":
            return 1
        network = self.terms.problem.network

        def fewest() -> int:
            every = (levels_of(network, group, level) for group in self._groups(stage))
            return min(len(part) for parts in every for part in parts)

        return self.once(stage, ("share", level), fewest)

    def gather(self, stage: int, level: str) -> Floats:
        """By layer, seconds to gather its weights in each pass."""
        model, network = self.terms.problem.model, self.terms.problem.network

        def seconds() -> Floats:
            parts = [
                each for group in self._groups(stage) for each in levels_of(network, group, level)
            ]
            tensor = max(part.tensor for part in self.shape.stages[stage])
            found = {
                kind: network.collective(
                    "all_gather", parts, model.parameters(kind, tensor) * model.weight_bytes
                )
                for kind in dict.fromkeys(self.terms.kinds)
            }
            return np.array([found[kind] for kind in self.terms.kinds])

        return self.once(stage, ("gather", level), seconds)

    def reductions(
        self, stage: int, settings: Settings, parameters: Sequence[int], what: str = "seconds"
    ) -> Floats:
        """Seconds to reduce the gradients of each of several numbers of parameters. what: a method
        of Reduction."""
        levels = (settings.weights, settings.states, settings.codec)
        every = self.once(stage, ("reductions", *levels), lambda: self._reductions(stage, settings))
        found = np.zeros(len(parameters))
        for each in every:
            found += getattr(each, what)(parameters)
        return found

    def crossing(self, stage: int, settings: Settings, *what: str) -> float:
        """The share of these seconds in which the NICs of each of the stage's hosts are busy, at
        least. what: of Reduction.PARTS, the last one first for a host of several."""
        levels = (settings.weights, settings.states, settings.codec)

        def share() -> float:
            network = self.terms.problem.network
            every = self.once(
                stage, ("reductions", *levels), lambda: self._reductions(stage, settings)
            )
            crossing: dict[object, float] = {}
            for each in map(Reduction.PARTS.index, what):
                crossing |= hosts_of(network, [reduction.groups[each] for reduction in every])
            ranks = (rank for replica in self.replicas[stage] for rank in replica.ranks)
            hosts = {network.domain(rank, "host") for rank in ranks}
            return min((crossing.get(host, 0.0) for host in hosts), default=0.0)

        return self.once(stage, ("crossing", *what, *levels), share)

    @cached_property
    def joined(self) -> list[bool]:
        """Of each stage but the last, whether it and the next one belong together. Stages that
        belong together all have ranks on one host, so its NICs carry the sums of them all."""
        domain = self.terms.problem.network.domain
        found: list[bool] = []
        common: set[object] = set()
        for replicas in self.replicas:
            hosts = {domain(rank, "host") for replica in replicas for rank in replica.ranks}
            both = common & hosts
            found.append(bool(both))
            common = both or hosts
        return found[1:]

    def of_layers(self, stage: int, settings: Settings, what: str) -> Floats:
        """The same of each layer alone."""
        model = self.terms.problem.model

        def seconds() -> Floats:
            tensor = max(part.tensor for part in self.shape.stages[stage])
            kinds = list(dict.fromkeys(self.terms.kinds))
            sizes = [model.parameters(kind, tensor) for kind in kinds]
            each = dict(
                zip(kinds, self.reductions(stage, settings, sizes, what).tolist(), strict=True)
            )
            return np.array([each[kind] for kind in self.terms.kinds])

        levels = (settings.weights, settings.states, settings.codec)
        return self.once(stage, ("of layers", what, *levels), seconds)

    def _reductions(self, stage: int, settings: Settings) -> list[Reduction]:
        problem = self.terms.problem
        return [
            Reduction(
                problem.model, problem.network, wave, settings.weights, settings.states,
                settings.states, settings.codec,
            )
            for wave in waves(self._groups(stage))
        ]  # fmt: skip

    def _groups(self, stage: int) -> list[list[int]]:
        """The ranks that hold the same weights."""
        return self.once(stage, ("groups",), Stage((), self.replicas[stage]).data_groups)

    def once(self, stage: int, what: tuple[object, ...], compute: Callable[[], Value]) -> Value:
        """Computes what depends on the ranks of a stage alone."""
        return self._known((self.keys[stage], *what), compute)

    def _known(self, key: tuple[object, ...], compute: Callable[[], Value]) -> Value:
        if key not in self.terms.probed:
            self.terms.probed[key] = compute()
        found: Value = self.terms.probed[key]
        return found
