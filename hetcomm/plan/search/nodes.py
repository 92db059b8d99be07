"""The nodes of a search: groups of shapes, shapes, and a shape with settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from hetcomm.plan.layout import Layout, Stage
from hetcomm.plan.search.best_first import Node
from hetcomm.plan.search.fill import Filling
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.replicas import ReplicaGroup, replica_groups
from hetcomm.plan.search.settings import Settings, SettingsSpace
from hetcomm.plan.search.shapes import Shape, spans_of
from hetcomm.plan.search.space import Space, StageGroup, stage_groups
from hetcomm.plan.search.terms import Terms

SOME = 64  # shapes of a group that become nodes together


@dataclass(frozen=True)
class Search:
    """What all nodes of a search share."""

    terms: Terms
    space: Space
    settings_space: SettingsSpace

    def settings(self, shape: Shape) -> list[Settings]:
        """Those that the pipelines of a shape can have."""
        micro_batches = tuple(set(shape.shares)) or shape.micro_batches
        stages, layers = len(shape.stages), self.space.layers
        return list(self.settings_space.settings(stages, micro_batches, layers))

    def layout(self, shape: Shape, settings: Settings, counts: Iterable[int]) -> Layout:
        """counts: layers of the stages."""
        spans = spans_of(tuple(counts), settings.chunks)
        stages = zip(spans, Probes(self.terms, shape).replicas, strict=True)
        return Layout(
            tuple(Stage(tuple(chunks), replicas) for chunks, replicas in stages),
            self.space.batch,
            shape.micro_batch,
            schedule=settings.schedule,
            recompute=settings.recompute,
            weights=settings.weights,
            gradients=settings.states,
            optimizer_states=settings.states,
            codec=settings.codec,
            overlap_optimizer=True,
            shares=shape.shares,
        )

    def crowded(self, shape: Shape) -> float:
        """Seconds that all passes of a shape take at least, where ranks share processors."""
        processors = self.terms.problem.profile.processors
        if processors is None:
            return 0.0
        parts = {part for stage in shape.stages for part in stage}
        model, samples = self.terms.problem.model, shape.micro_batch
        seconds = sum(
            count * min(self.terms.rank_seconds(part, samples, kind) for part in parts)
            for kind, count in model.count(0, model.layers).items()
        )
        return self.space.batch * seconds / processors

    def roots(self) -> Iterator[Node[Candidate]]:
        """All layouts of the space."""
        for groups in (stage_groups, replica_groups):
            for group in groups(self.terms, self.space):
                yield OfGroup(group.bound, self, group)


@dataclass(frozen=True)
class Candidate:
    """A shape with settings: filling.options[index], which take `bound` seconds at least. counts:
    layers of the stages; none: any good ones."""

    search: Search
    shape: Shape
    filling: Filling
    index: int
    bound: float
    counts: tuple[int, ...] = ()

    @property
    def settings(self) -> Settings:
        return self.filling.options[self.index]

    def division(self) -> tuple[int, ...]:
        """Layers of the stages: those given, or by the relaxation."""
        return self.counts or self.filling.division(self.index, self.bound)

    def layout(self, counts: Iterable[int]) -> Layout:
        return self.search.layout(self.shape, self.settings, counts)


@dataclass(frozen=True)
class Inner:
    """A node that is no leaf."""

    bound: float
    search: Search

    @property
    def close(self) -> bool:
        return False

    @property
    def leaf(self) -> Candidate | None:
        return None


@dataclass(frozen=True)
class OfGroup(Inner):
    """Shapes of a group, from a bound on."""

    group: StageGroup | ReplicaGroup
    rest: Iterator[tuple[float, Shape]] | None = field(default=None, compare=False)

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        rest = self.rest
        if rest is None:
            rest = self.group.shapes(self.search.terms, self.search.space, below)
        some = list(islice(rest, SOME))
        for bound, shape in some:
            yield OfShape(bound, self.search, shape)
        if len(some) == SOME:
            yield OfGroup(some[-1][0], self.search, self.group, rest)


@dataclass(frozen=True)
class OfShape(Inner):
    """All layouts of a shape."""

    shape: Shape

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        options = self.search.settings(self.shape)
        known = max(self.bound, self.search.crowded(self.shape))
        if not options or known >= below:
            return
        filling = Filling(self.search.terms, Probes(self.search.terms, self.shape), options)
        for index, bound in enumerate(filling.bounds(below).tolist()):
            if bound < below:
                yield OfSettings(
                    max(bound, known), Candidate(self.search, self.shape, filling, index, bound)
                )


@dataclass(frozen=True)
class OfSettings:
    """A shape with settings, priced by a good division of the layers; or one division."""

    bound: float
    leaf: Candidate

    @property
    def close(self) -> bool:
        return True

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        if not self.leaf.counts and len(self.leaf.shape.stages) > 1:
            yield OfDivisions(self.bound, self.leaf.search, self.leaf, ())


@dataclass(frozen=True)
class OfDivisions(Inner):
    """Divisions of the layers with so many blocks on the first stages."""

    candidate: Candidate
    first: tuple[int, ...]

    def open(self, below: float) -> Iterable[Node[Candidate]]:
        candidate, stages = self.candidate, len(self.candidate.shape.stages)
        left = candidate.search.space.blocks - sum(self.first)
        bounds = candidate.filling.of_divisions(candidate.index, self.first, below)
        for count, bound in enumerate(np.maximum(bounds, self.bound).tolist()):
            first = (*self.first, count)
            if bound >= below:
                continue
            if len(first) + 1 < stages:
                yield OfDivisions(bound, self.search, candidate, first)
            else:
                layers = [*first, left - count]
                layers[0] += 1
                layers[-1] += 1
                yield OfSettings(bound, replace(candidate, bound=bound, counts=tuple(layers)))
