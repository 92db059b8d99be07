"""The tree of a search: groups of shapes, shapes, settings, divisions of layers, layouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from hetcomm.plan.layout import Layout, Stage
from hetcomm.plan.search.best_first import Node
from hetcomm.plan.search.bound import relaxed_bound, whole_bound
from hetcomm.plan.search.division import Floats
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.settings import Choices, Settings
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.space import Space, replica_shapes, stage_shapes
from hetcomm.plan.search.tables import Pipelines, Spans, all_bottlenecks
from hetcomm.plan.search.terms import Terms

# A group of shapes is opened in windows of bounds, each this much further.
WINDOW = 1.02
FAMILIES = (stage_shapes, replica_shapes)


class Ends(NamedTuple):
    """Seconds of a micro-batch forward and backward, of each kind of layer; the share of a block's
    that is forward."""

    embedding: float
    block: float
    head: float
    forward_share: float


@dataclass(frozen=True)
class Search:
    """What all nodes of a search share."""

    terms: Terms
    space: Space
    choices: Choices
    alpha: float = 1.0
    known: dict[tuple[int, ...], Ends] = field(default_factory=dict, repr=False)

    def trusted(self, bottleneck: float) -> float:
        """The bottleneck as a bound. With an alpha the stages' seconds are not the true ones."""
        return bottleneck if self.alpha == 1 else 0.0

    def least(self, shape: Shape) -> float:
        """Seconds that a shape takes at least: with whole blocks, or to fill the pipeline."""
        blocks, found = self.terms.problem.model.blocks, 0.0
        micro_batches, stages = self.micro_batches(shape), len(shape.stages)
        for index in range(len(shape.stages[0])):
            runs = [(self._ends(parts[index], shape.micro_batch), n) for parts, n in shape.runs]
            both = [each.block for each, count in runs for _ in range(count)]
            fill = min(1 / max(self.choices.chunks), *(each.forward_share for each, _ in runs))
            relaxed = relaxed_bound(
                both, [0.0] * (stages - 1), blocks, micro_batches, [fill] * stages, both[0]
            )
            own = (runs[0][0].embedding, runs[-1][0].head)
            if stages == 1:
                ends = [(sum(own), both[0], 1)]
            else:
                ends = [(own[0], both[0], 1), (own[1], both[-1], 1)]
            inner = [(0.0, each.block, count) for each, count in runs]
            inner[0] = (*inner[0][:2], inner[0][2] - 1)
            inner[-1] = (*inner[-1][:2], inner[-1][2] - 1)
            whole = whole_bound([*ends, *(each for each in inner if each[2] > 0)], blocks)
            found = max(found, micro_batches * whole, relaxed)
        return found

    def _ends(self, part: Part, samples: int) -> Ends:
        key = (part.pool, part.tensor, part.context, samples)
        if key not in self.known:
            forward, backward = self.terms.layer_seconds(part, samples, False)
            both = forward + backward
            self.known[key] = Ends(
                float(both[0]), float(both[1]), float(both[-1]), float(forward[1] / both[1])
            )
        return self.known[key]

    def micro_batches(self, shape: Shape) -> int:
        return self.space.batch // (shape.replicas * shape.micro_batch)

    def roots(self) -> Iterator[Node[Candidate]]:
        """All layouts of the space."""
        for family, group in product(range(len(FAMILIES)), self.space.groups()):
            _, low = FAMILIES[family](self.space, self.terms.block_seconds, group, 0.0, 0.0)
            if low < float("inf"):
                yield Group(low, self, family, group)


@dataclass(frozen=True)
class Candidate:
    """A layout with all but the level of gradients, which follows from the memory that is left."""

    shape: Shape
    settings: Settings
    spans: Spans
    layout: Layout


@dataclass(frozen=True)
class Inner:
    """A node that is no leaf."""

    bound: float

    @property
    def leaf(self) -> Candidate | None:
        return None


@dataclass(frozen=True)
class Group(Inner):
    """Shapes of a family with equal (replicas, micro-batch, context degree), from a bound on."""

    search: Search
    family: int
    group: tuple[int, int, int]

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        end = min(below, self.bound * WINDOW)
        shapes, further = FAMILIES[self.family](
            self.search.space, self.search.terms.block_seconds, self.group, self.bound, end
        )
        found = [OfShape(max(b, self.search.least(s)), self.search, s) for b, s in shapes]
        yield from sorted(found, key=lambda node: node.bound)
        if further < below:
            yield Group(further, self.search, self.family, self.group)


@dataclass(frozen=True)
class OfShape(Inner):
    """All layouts of a shape."""

    search: Search
    shape: Shape
    refined: bool = False

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        terms, shape = self.search.terms, self.shape
        probes = Probes(terms, shape, self.search.space.batch)
        if not self.refined:
            bound = max(self.bound, self._with_reductions(probes, below))
            return [OfShape(bound, self.search, shape, refined=True)] if bound < below else []
        micro_batches = self.search.micro_batches(shape)
        relaxed: dict[tuple[str, int, bool], float] = {}
        kept: list[tuple[float, Pipelines]] = []
        for settings in self.search.choices.settings(
            len(shape.stages), micro_batches, terms.problem.model.layers
        ):
            key = (settings.schedule, settings.chunks, settings.recompute)
            if key not in relaxed:
                relaxed[key] = self._relaxed(settings, probes, micro_batches)
            if relaxed[key] < below:
                kept.append((relaxed[key], Pipelines(terms, probes, settings, self.search.alpha)))
        if not kept:
            return []
        bottlenecks = all_bottlenecks([pipelines for _, pipelines in kept])
        found = [
            OfSettings(
                max(self.bound, bound, self.search.trusted(bottleneck)), pipelines, self.search
            )
            for (bound, pipelines), bottleneck in zip(kept, bottlenecks, strict=True)
            if bottleneck < float("inf")
        ]
        return sorted(found, key=lambda node: node.bound)

    def _with_reductions(self, probes: Probes, below: float) -> float:
        """Seconds of the slowest stage at least, with whole blocks and the cheapest settings."""
        rows = [(self._row(probes, run), count) for run, (_, count) in enumerate(self.shape.runs)]
        blocks = self.search.terms.problem.model.blocks

        def holds(seconds: float) -> bool:
            held = (n * (int(np.searchsorted(row, seconds, "right")) - 1) for row, n in rows)
            return sum(held) >= blocks

        low, high = self.bound, min(below, 1e9)
        if self.search.alpha != 1 or holds(low):
            return low
        if not holds(high):
            return high
        for _ in range(8):
            middle = (low + high) / 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return low

    def _row(self, probes: Probes, run: int) -> Floats:
        """[n] -> seconds of a stage with n blocks or more, at least, with any settings."""
        search, alike = self.search, probes.alike[run]
        stage = self.shape.first_stages[run] + (0 if alike else 1)  # one that no probe describes
        micro_batches = search.micro_batches(self.shape)

        def least() -> Floats:
            loads = [
                Pipelines(search.terms, probes, settings).load(stage)[1, 1:-1]
                for settings in Choices(
                    ("1f1b",),
                    recompute=(min(search.choices.recompute),),
                    levels=search.choices.levels,
                    codecs=search.choices.codecs,
                ).settings(1, micro_batches, search.terms.problem.model.layers)
            ]
            row = np.minimum.accumulate(np.minimum.reduce(loads)[::-1])[::-1]
            return np.concatenate(([0.0], row[1:]))

        return probes.once(run, ("row", alike, micro_batches, self.shape.micro_batch), least)

    def _relaxed(self, settings: Settings, probes: Probes, micro_batches: int) -> float:
        terms, samples = self.search.terms, self.shape.micro_batch
        lines = []
        for index in range(len(self.shape.stages[0])):
            line = []
            for parts, count in self.shape.runs:
                f, b = terms.layer_seconds(parts[index], samples, settings.recompute)
                line += [(float(f[1]), float(f[1] + b[1]))] * count
            lines.append(line)
        slowest = max(lines, key=lambda line: sum(both for _, both in line))
        blocks = [both for _, both in slowest]
        if settings.schedule == "zero_bubble":
            fills = [forward / both for forward, both in slowest]
        else:
            fills = [1 / settings.chunks] * len(slowest)
        return relaxed_bound(
            blocks,
            list(probes.transfers * (1 if settings.schedule == "zero_bubble" else 2)),
            terms.problem.model.blocks,
            micro_batches,
            fills,
            # The embedding is one of the layers of the first chunk.
            slack=blocks[0] * (1 - 1 / settings.chunks),
        )


@dataclass(frozen=True)
class OfSettings(Inner):
    """All divisions of the layers of a shape with settings."""

    pipelines: Pipelines
    search: Search

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        partitions = self.pipelines.tables.partitions()
        first = next(partitions, None)
        if first is not None:
            bound = max(self.bound, self.search.trusted(first[0]))
            yield Divisions(bound, self, first[1], partitions)


@dataclass(frozen=True)
class Divisions(Inner):
    """A division of the layers, and all with a larger bottleneck."""

    above: OfSettings
    ends: Sequence[int]
    rest: Iterator[tuple[float, tuple[int, ...]]]

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        pipelines, search = self.above.pipelines, self.above.search
        if min(b - a for a, b in zip((0, *self.ends), self.ends, strict=False)) >= (
            pipelines.settings.chunks
        ):
            spans = pipelines.spans(self.ends)
            bound = max(self.bound, pipelines.bound(spans))
            if bound < below and pipelines.may_fit(spans):
                yield Leaf(bound, pipelines, spans, search)
        following = next(self.rest, None) if search.alpha == 1 else None
        if following is not None:
            yield Divisions(max(self.bound, following[0]), self.above, following[1], self.rest)


@dataclass(frozen=True)
class Leaf:
    """One layout."""

    bound: float
    pipelines: Pipelines
    spans: Spans
    search: Search

    @property
    def leaf(self) -> Candidate:
        shape, settings = self.pipelines.shape, self.pipelines.settings
        stages = tuple(
            Stage(tuple(chunks), replicas)
            for chunks, replicas in zip(self.spans, self.pipelines.probes.replicas, strict=True)
        )
        layout = Layout(
            stages,
            self.search.space.batch,
            shape.micro_batch,
            schedule=settings.schedule,
            recompute=settings.recompute,
            weights=settings.weights,
            gradients=settings.states,
            optimizer_states=settings.states,
            codec=settings.codec,
            overlap_optimizer=True,
        )
        return Candidate(shape, settings, self.spans, layout)

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        return ()
