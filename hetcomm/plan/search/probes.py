"""What the network charges a shape, before its layers are divided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from hetcomm.plan.layout import Replica, groups_of
from hetcomm.plan.prediction.costs import waves_of
from hetcomm.plan.prediction.network import levels_of
from hetcomm.plan.prediction.synchronize import piece_hosts, reductions_of
from hetcomm.plan.search.shapes import Part, Shape, place
from hetcomm.plan.search.terms import Terms, Value


class Sums(NamedTuple):
    """Seconds of messages of one block's gradients and weights, at least; see Pieces."""

    left: float
    beside: float
    together: float  # as beside, of many blocks in one message
    updates: float
    crossing: float  # of left and beside, in which the NICs of each of the stage's hosts are busy


class Probes:
    """Prices of a shape's ranks, computed once each. None is more than the prediction's.

    Stages of equal parts whose ranks lie alike on their hosts have equal prices in all shapes, if
    the hosts of each pool are alike.
    """

    def __init__(self, terms: Terms, shape: Shape) -> None:
        self.terms, self.shape = terms, shape

    @cached_property
    def replicas(self) -> list[tuple[Replica, ...]]:
        """Of each stage."""
        across, pools = self.shape.across, self.terms.problem.pools

        def placed(parts: tuple[Part, ...], count: int) -> list[tuple[Replica, ...]]:
            key = ("place", parts, count, across)
            return self.terms.once(key, lambda: place(pools, parts, count, across))

        return [stage for parts, count in self.shape.runs for stage in placed(parts, count)]

    @cached_property
    def keys(self) -> list[tuple[object, ...]]:
        """Of each stage, equal for equal prices."""
        return [
            (parts, self._pattern(((parts, count, s),), replicas))
            for (parts, count, s), replicas in zip(self._places, self.replicas, strict=True)
        ]

    @cached_property
    def _places(self) -> list[tuple[tuple[Part, ...], int, int]]:
        """Of each stage: its parts, the stages of its run, and its place there."""
        return [(parts, count, s) for parts, count in self.shape.runs for s in range(count)]

    def _pattern(self, places: tuple[object, ...], replicas: Sequence[Replica]) -> int:
        """Equal for replicas whose ranks lie alike on hosts and islands. places: that have them."""
        network, pools = self.terms.problem.network, self.terms.problem.pools

        def compute() -> int:
            ranks = [rank for replica in replicas for rank in replica.ranks]
            pattern: list[tuple[object, ...]] = []
            for level in ("host", "island"):
                first: dict[object, int] = {}
                domains = (network.domain(rank, level) for rank in ranks)
                pattern.append(tuple(first.setdefault(each, len(first)) for each in domains))
            if not all(pool.uniform for pool in pools):
                pattern = [places, (self.shape.across,)]
            numbers: dict[object, int] = self.terms.once(("patterns",), dict)
            # The pattern of many ranks is long, so its hash stands for it.
            return numbers.setdefault(hash(tuple(pattern)), len(numbers))

        return self.terms.once(("pattern", places, self.shape.across), compute)

    @cached_property
    def transfers(self) -> list[float]:
        """Seconds of an activation to the next stage, or of a gradient back if that is faster,
        while all replicas send."""
        return [self._moved(s, s + 1) for s in range(len(self.replicas) - 1)]

    @cached_property
    def wrap(self) -> float:
        """The same from the last stage to the first one's next chunk."""
        last = len(self.replicas) - 1
        return self._moved(last, 0) if last else 0.0

    def _moved(self, stage: int, following: int) -> float:
        parts = (self.shape.stages[stage], self.shape.stages[following])
        a, b = self.replicas[stage], self.replicas[following]
        pattern = self._pattern((self._places[stage], self._places[following]), (*a, *b))
        key = ("transfer", self.shape.micro_batch, *parts, pattern)
        return self.terms.once(key, lambda: self._transfer(a, b))

    def _transfer(self, a: tuple[Replica, ...], b: tuple[Replica, ...]) -> float:
        network, runtime = self.terms.problem.network, self.terms.problem.runtime
        size = self.terms.problem.model.output_bytes() * self.shape.micro_batch
        found = []
        for source, target in ((a, b), (b, a)):
            waves, counts = waves_of(source, target, (1,) * len(source))
            plans = {
                (count, -(-size // (lanes if runtime.parts else one.context)))
                for one, (count, lanes) in zip(source, counts, strict=True)
            }
            for count, part in plans:
                found.append(sum(network.transfer(pairs, part) for pairs in waves[:count]))
        return min(found)

    @cached_property
    def hosts(self) -> list[set[object]]:
        """Of each stage."""
        domain = self.terms.problem.network.domain
        return [
            {domain(rank, "host") for replica in replicas for rank in replica.ranks}
            for replicas in self.replicas
        ]

    @cached_property
    def joined(self) -> list[slice]:
        """Stages in a row that all have ranks on one host, whose NICs carry all their sums."""
        found, first, common = [], 0, self.hosts[0]
        for s, hosts in enumerate(self.hosts):
            if not common & hosts:
                found.append(slice(first, s))
                first, common = s, hosts
            common = common & hosts
        return [*found, slice(first, len(self.hosts))]

    def share(self, stage: int, level: str) -> int:
        """The fewest ranks that share what a level partitions."""
        network = self.terms.problem.network

        def compute() -> int:
            every = (levels_of(network, group, level) for group in groups_of(self.replicas[stage]))
            return min(len(part) for parts in every for part in parts)

        return 1 if level == "rank" else self._of_stage(stage, ("share", level), compute)

    def gather(self, stage: int, level: str, kind: str) -> float:
        """Seconds to gather the weights of a layer in each pass."""
        model, network = self.terms.problem.model, self.terms.problem.network

        def compute() -> float:
            parts = [
                each
                for group in groups_of(self.replicas[stage])
                for each in levels_of(network, group, level)
            ]
            tensor = max(part.tensor for part in self.shape.stages[stage])
            size = model.parameters(kind, tensor) * model.weight_bytes
            return network.collective("all_gather", parts, size)

        return 0.0 if level == "rank" else self._of_stage(stage, ("gather", level, kind), compute)

    def sums(self, stage: int, weights: str, states: str, codec: str) -> Sums:
        """Of a block on the stage, with these levels."""
        levels = (weights, states, codec)
        return self._of_stage(stage, ("sums", *levels), lambda: self._sums(stage, *levels))

    def _sums(self, stage: int, weights: str, states: str, codec: str) -> Sums:
        problem = self.terms.problem
        model, blocks = problem.model, problem.model.blocks
        tensor = max(part.tensor for part in self.shape.stages[stage])
        size, levels = model.parameters("block", tensor), (weights, states, states)
        beside = together = left = updates = 0.0
        reductions = reductions_of(model, problem.network, self.replicas[stage], *levels, codec)
        for reduction in reductions:
            # Latencies count once for many blocks, but large messages may take another plan.
            sizes = [size, size * blocks]
            one, all_blocks = reduction.beside(sizes) / (1, blocks)
            beside, together = beside + float(one), together + float(min(one, all_blocks))
            left += float((reduction.left(sizes) / (1, blocks)).min())
            updates += float(reduction.updates([size])[0])
        shares = [
            min((each.get(host, 0.0) for host in self.hosts[stage]), default=0.0)
            for each in piece_hosts(problem.network, reductions)
        ]
        crossing = shares[0] * together + shares[1] * left
        return Sums(left, beside, together, updates, crossing)

    def _of_stage(
        self, stage: int, what: tuple[object, ...], compute: Callable[[], Value]
    ) -> Value:
        """Computes what depends on the ranks of a stage alone."""
        return self.terms.once((*self.keys[stage], *what), compute)
