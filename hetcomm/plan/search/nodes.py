"""The tree of a search: groups of shapes, shapes, settings, divisions of layers, layouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product

import numpy as np

from hetcomm.plan.layout import Layout, Stage
from hetcomm.plan.search.best_first import Node
from hetcomm.plan.search.division import Floats
from hetcomm.plan.search.filling import Pipes, StageRun
from hetcomm.plan.search.loads import all_bounds, chain_of
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.settings import Settings, SettingsSpace
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.space import (
    ShapeGroup,
    Shapes,
    Space,
    Window,
    replica_shapes,
    stage_shapes,
)
from hetcomm.plan.search.spans import Division, Spans, spans_of
from hetcomm.plan.search.tables import Pipelines
from hetcomm.plan.search.terms import Terms

# A group of shapes is opened in windows of bounds, each this much further.
WINDOW = 1.05
FAMILIES = (stage_shapes, replica_shapes)


@dataclass(frozen=True)
class Search:
    """What all nodes of a search share, and the Prices of its shapes."""

    terms: Terms
    space: Space
    settings_space: SettingsSpace
    alpha: float = 1.0
    _chunks: dict[tuple[int, int], int] = field(default_factory=dict, repr=False, compare=False)

    _settings: dict[tuple[int, int], list[Settings]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _transfers: dict[tuple[Part, int, int, bool], float] = field(
        default_factory=dict, repr=False, compare=False
    )
    _rows: dict[tuple[object, ...], list[Floats]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def trusted(self, bound: float) -> float:
        """A bound by the stages' seconds. With an alpha these are not the true ones."""
        return bound if self.alpha == 1 else 0.0

    def limit(self, below: float) -> float:
        """Seconds that bounds by the stages' seconds may not reach; see trusted()."""
        return below if self.alpha == 1 else np.inf

    def micro_batches(self, shape: Shape) -> int:
        return self.space.batch // (shape.replicas * shape.micro_batch)

    def block_seconds(self, pool: int, tensor: int, context: int, micro_batch: int) -> float | None:
        return self.terms.block_seconds(pool, tensor, context, micro_batch)

    def forward_seconds(self, part: Part, micro_batch: int) -> float:
        forward, _ = self.terms.block_passes(part, micro_batch)
        return forward

    def back_seconds(self, part: Part, micro_batch: int, chunks: int) -> float:
        _, backward = self.terms.block_passes(part, micro_batch)
        may_halve = chunks == 1 and "zero_bubble" in self.settings_space.schedules
        return backward / 2 if may_halve else backward

    def transfer(self, part: Part, count: int, micro_batch: int, across: bool) -> float:
        key = (part, count, micro_batch, across)
        if key not in self._transfers:
            shape = Shape(((part,),) * count, micro_batch, across)
            transfers = Probes(self.terms, shape, self.space.batch).transfers
            self._transfers[key] = float(transfers.min()) if count > 1 else 0.0
        return self._transfers[key]

    def most_chunks(self, stages: int, micro_batches: int) -> int:
        key = (stages, micro_batches)
        if key not in self._chunks:
            every = self.settings_space.settings(stages, micro_batches, self.space.layers)
            self._chunks[key] = max((each.chunks for each in every), default=1)
        return self._chunks[key]

    def rows(
        self, parts: tuple[Part, ...], count: int, micro_batch: int, across: bool
    ) -> list[Floats]:
        """With the cheapest settings."""
        return self._rows_of("steady", parts, count, micro_batch, across)

    def alone(
        self, parts: tuple[Part, ...], count: int, micro_batch: int, across: bool
    ) -> list[Floats]:
        """With the cheapest settings."""
        return self._rows_of("alone", parts, count, micro_batch, across)

    def _rows_of(
        self, what: str, parts: tuple[Part, ...], count: int, micro_batch: int, across: bool
    ) -> list[Floats]:
        """what: of Seconds."""
        key = (what, parts, count, micro_batch, across)
        if key not in self._rows:
            self._rows[key] = self._computed(*key)
        return self._rows[key]

    def _computed(
        self, what: str, parts: tuple[Part, ...], count: int, micro_batch: int, across: bool
    ) -> list[Floats]:
        shape = Shape((parts,) * count, micro_batch, across)
        probes = Probes(self.terms, shape, self.space.batch)
        micro_batches = self.micro_batches(shape)
        every = self._settings_of_rows.settings(1, micro_batches, self.space.layers)
        pipelines = Pipelines(self.terms, probes, tuple(every))
        blocks = [self.terms.alike[1][1, 1 + n] for n in range(self.space.layers - 1)]

        def row(stage: int) -> Floats:
            seconds = getattr(pipelines.seconds(stage), what)[blocks]
            least = np.minimum.accumulate(seconds[::-1])[::-1]
            return np.concatenate(([0.0], least[1:]))

        return [
            probes.once(s, ("row", what, self.micro_batches(shape), micro_batch), partial(row, s))
            for s in range(count)
        ]

    @cached_property
    def _settings_of_rows(self) -> SettingsSpace:
        return replace(
            self.settings_space,
            schedules=("1f1b",),
            recompute=(min(self.settings_space.recompute),),
        )

    def settings(self, shape: Shape) -> list[Settings]:
        """Those that the pipelines of a shape can have."""
        key = (len(shape.stages), self.micro_batches(shape))
        if key not in self._settings:
            self._settings[key] = list(self.settings_space.settings(*key, self.space.layers))
        return self._settings[key]

    def crowded(self, shape: Shape) -> float:
        """Seconds that all passes of a shape take at least, where ranks share processors."""
        processors = self.terms.problem.profile.processors
        if processors is None:
            return 0.0
        parts = {part for stage in shape.stages for part in stage}
        each = [
            np.add(*self.terms.layer_seconds(part, shape.micro_batch)) * part.width
            for part in parts
        ]
        work = float(np.minimum.reduce(each).sum())
        return self.space.batch / shape.micro_batch * work / processors

    def may_take(self, shape: Shape, below: float) -> bool:
        """Whether a shape's stages may hold all blocks in less than so many seconds."""
        if below == np.inf or any(len(parts) > 1 for parts, _ in shape.runs):
            return True
        micro_batch, across = shape.micro_batch, shape.across
        runs = [
            StageRun(
                parts[0],
                count,
                tuple(self.alone(parts, count, micro_batch, across)),
                self.transfer(parts[0], count, micro_batch, across),
            )
            for parts, count in shape.runs
        ]
        pipes = Pipes(runs, self, self.space.layers - 2, micro_batch, self.space.batch)
        return pipes.may_take(below)

    def shapes(self, family: int, group: ShapeGroup, window: Window) -> Shapes:
        """The shapes of a family; see stage_shapes()."""
        return FAMILIES[family](self.space, self, group, window)

    def roots(self) -> Iterator[Node[Candidate]]:
        """All layouts of the space."""
        for family, group in product(range(len(FAMILIES)), self.space.groups()):
            _, low = self.shapes(family, group, Window(0.0, 0.0, 0.0))
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
    def close(self) -> bool:
        return False

    @property
    def leaf(self) -> Candidate | None:
        return None


@dataclass(frozen=True)
class Group(Inner):
    """Shapes of one family and one group, from a bound on."""

    search: Search
    family: int
    group: ShapeGroup

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        window = Window(self.bound, min(below, self.bound * WINDOW), below)
        shapes, further = self.search.shapes(self.family, self.group, window)
        found = [
            OfShape(self.search.trusted(bound), self.search, shape)
            for bound, shape in shapes
            if self.search.settings(shape)
        ]
        yield from sorted(found, key=lambda node: node.bound)
        if further < below:
            yield Group(further, self.search, self.family, self.group)


@dataclass(frozen=True)
class OfShape(Inner):
    """All layouts of a shape."""

    search: Search
    shape: Shape
    refined: bool = False

    @property
    def close(self) -> bool:
        return self.refined

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        search = self.search
        probes = Probes(search.terms, self.shape, search.space.batch)
        every = search.settings(self.shape)
        if self.refined or search.alpha != 1:
            pipelines = [
                Pipelines(search.terms, probes, options, alpha=search.alpha)
                for options in _alike(every)
            ]
            return _of_settings(self.bound, pipelines, search, below)
        if not search.may_take(self.shape, below):
            return []
        every = [each for each in every if each.recompute == min(search.settings_space.recompute)]
        whole = {each.schedule for each in every if each.chunks == 1}
        if "zero_bubble" in whole:  # it waits least
            every = [each for each in every if each.schedule not in whole - {"zero_bubble"}]
        loose = [Pipelines(search.terms, probes, each, loose=True) for each in _alike(every)]
        least = float(all_bounds(loose, below).min()) if loose else np.inf
        bound = max(self.bound, least, search.crowded(self.shape))
        return [replace(self, bound=bound, refined=True)] if bound < below else []


def _alike(settings: Iterable[Settings]) -> list[tuple[Settings, ...]]:
    """Settings that differ in levels and codecs alone, together."""
    alike: dict[object, list[Settings]] = {}
    for each in settings:
        alike.setdefault((each.schedule, each.chunks, each.recompute), []).append(each)
    return [tuple(options) for options in alike.values()]


@dataclass(frozen=True)
class OfSettings(Inner):
    """All divisions of the layers of a shape, with one of some settings."""

    pipelines: Pipelines
    search: Search

    @property
    def close(self) -> bool:
        return True

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        pipelines = self.pipelines
        if len(pipelines.options) > 1:
            each = [replace(pipelines, options=(option,)) for option in pipelines.options]
            yield from _of_settings(self.bound, each, self.search, below)
            return
        partitions = chain_of(pipelines, self.search.limit(below)).partitions()
        first = next(partitions, None)
        if first is not None:
            bound = max(self.bound, self.search.trusted(first[0]))
            yield Divisions(bound, self, first[1], partitions)


def _of_settings(
    bound: float, pipelines: Sequence[Pipelines], search: Search, below: float
) -> list[Node[Candidate]]:
    """Nodes of those settings of a shape that may fit, the most promising first."""
    found = [
        (float(least), each)
        for least, each in zip(all_bounds(pipelines, search.limit(below)), pipelines, strict=True)
        if least < float("inf")
    ]
    return [
        OfSettings(max(bound, search.trusted(least)), each, search)
        for least, each in sorted(found, key=lambda pair: pair[0])
    ]


@dataclass(frozen=True)
class Divisions(Inner):
    """A division of the layers, and all with a larger bottleneck."""

    above: OfSettings
    ends: Sequence[int]
    rest: Iterator[tuple[float, tuple[int, ...]]]

    @property
    def close(self) -> bool:
        return True

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        pipelines, search = self.above.pipelines, self.above.search
        if min(b - a for a, b in zip((0, *self.ends), self.ends, strict=False)) >= (
            pipelines.settings.chunks
        ):
            division = Division(pipelines, spans_of(self.ends, pipelines.settings.chunks))
            bound = max(self.bound, division.bound())
            if bound < below and division.may_fit():
                yield Leaf(bound, pipelines, division.spans, search)
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
    def close(self) -> bool:
        return True

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
