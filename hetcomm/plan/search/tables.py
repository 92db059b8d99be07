"""Tables of a shape with settings: seconds and memory, by stage and range of layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hetcomm.plan.prediction.synchronize import Reduction
from hetcomm.plan.profile import NO_WORK
from hetcomm.plan.search.division import NEVER, Floats, sums_of
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.settings import Settings, in_flight, warm_up
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.terms import Indices, Shares, Terms


class Seconds(NamedTuple):
    """Seconds of a stage, at least, by kind of range (Terms.alike).

    forward, backward: of a micro-batch. first_forward to final_backward: these of the first chunk
    and of the last one. tail: without deferred passes; alone, renewal, steady: see Load. latest:
    forward of the first chunk, at most.
    """

    forward: Floats
    backward: Floats
    first_forward: Floats
    first_backward: Floats
    final_forward: Floats
    final_backward: Floats
    tail: Floats
    alone: Floats
    renewal: Floats
    steady: Floats
    latest: Floats


class Sums(NamedTuple):
    """Seconds in which sums keep the NICs of a stage's hosts busy, at least, by kind of range.

    left: those that follow all passes. beside: those beside the last backward pass of the first
    chunk. updates: those of new weights, which the first forward pass hides by `hidden` at most.
    """

    left: Floats
    beside: Floats
    updates: Floats
    hidden: Floats


@dataclass(frozen=True)
class Pipelines:
    """The pipelines of a shape. options: settings that differ in levels and codecs alone; what is
    said of several holds for each. loose: the bounds also hold for schedules and recompute that
    take no less time without memory limits. alpha: the fastest kind of device counts as this much
    faster when layers are divided, as in Holmes (arXiv 2312.03549)."""

    terms: Terms
    probes: Probes
    options: tuple[Settings, ...]
    loose: bool = False
    alpha: float = 1.0

    @property
    def shape(self) -> Shape:
        return self.probes.shape

    @property
    def settings(self) -> Settings:
        """The only option, or what all options share: schedule, chunks, recompute."""
        return self.options[0]

    @property
    def half(self) -> float:
        """The part of a backward pass that computes weights' gradients later."""
        return 0.5 if self.settings.schedule == "zero_bubble" else 0.0

    @cached_property
    def micro_batches(self) -> int:
        return self.probes.batch // (self.shape.replicas * self.shape.micro_batch)

    def layer_seconds(self, stage: int, part: Part, weights: str) -> tuple[Floats, Floats]:
        """By layer, forward and backward, with the gathering of partitioned weights."""
        times = self.terms.layer_seconds(part, self.shape.micro_batch, self.settings.recompute)
        if weights == "rank":
            return times
        least = self.probes.gather(stage, weights)
        if not self.terms.problem.runtime.gather_beside:
            return times[0] + least, times[1] + least
        return np.maximum(times[0], least), np.maximum(times[1], least)

    def seconds(self, stage: int) -> Seconds:
        """Of a stage, by kind of range."""
        key = (
            "seconds", self.micro_batches, self.shape.micro_batch, self.half,
            self.settings.chunks, self.settings.recompute, self.loose, self._levels,
        )  # fmt: skip
        return self.probes.once(stage, key, lambda: self._seconds(stage))

    @cached_property
    def _levels(self) -> tuple[tuple[str, str, str], ...]:
        return tuple((each.weights, each.states, each.codec) for each in self.options)

    def _seconds(self, stage: int) -> Seconds:
        parts, (first, end) = self.shape.stages[stage], self.terms.alike[0]
        layers = np.maximum(end - first, 1)
        # [part, what, option, kind of range]
        passes = np.stack(
            [
                np.stack([self._passes(stage, part, each.weights) for each in self.options], axis=1)
                for part in parts
            ]
        )
        renewal = np.zeros(passes.shape[2:])
        if self.terms.problem.runtime.partitions:
            each = [self._divided(stage, o, passes[:, :, i]) for i, o in enumerate(self.options)]
            tail, renewal = (np.stack(rows) for rows in zip(*each, strict=True))
        else:
            # The last pass of a stage is the first chunk's, or computes weights' gradients.
            hidden = passes[:, 3].min(axis=0) * (1 if self.loose else 1 - self.half)
            reduction = np.stack([self.whole(stage, each, "seconds") for each in self.options])
            exposed = np.maximum(reduction / layers, reduction - hidden * (layers - 1) / layers)
            optimizer = [self.optimizer(stage, each.states) for each in self.options]
            tail = exposed + np.stack(optimizer)
        busy = self.micro_batches * (passes[:, 0] + passes[:, 1]).max(axis=0)
        own = passes[self.probes.slowest]
        more = (tail, busy + tail, renewal, busy + tail + renewal)
        rows = [each.min(axis=0) for each in (*own, *more)]
        rows.append(own[2].max(axis=0))
        return Seconds(*rows)

    def _passes(self, stage: int, part: Part, weights: str) -> Floats:
        """Forward and backward by kind of range, these of the first chunk, and of the last one."""
        chunks = self.settings.chunks

        def seconds() -> Floats:
            first, end = self.terms.alike[0]
            times = self.layer_seconds(stage, part, weights)
            work = self.host_work(part)
            whole = [
                sums_of(each)[first, end] + chunks * count * work
                for each, count in zip(times, (1, 2 if self.half else 1), strict=True)
            ]
            if chunks == 1:
                return np.stack(whole * 3)
            layers, embedding, head = np.maximum(end - first, 0), first == 0, end == len(times[0])
            most, least = -(-layers // chunks) - embedding, layers // chunks - head
            own = [most * each[1] + embedding * each[0] + work for each in times]
            final = [least * each[1] + head * each[-1] + work for each in times]
            return np.stack([*whole, *own, *final])

        key = (
            "passes", part, self.shape.micro_batch, self.settings.recompute, chunks, weights,
            self.half,
        )  # fmt: skip
        return self.probes.once(stage, key, seconds)

    def host_work(self, part: Part) -> float:
        """Seconds of the host in each pass, without messages."""
        problem = self.terms.problem
        return problem.profile.host_work_of(problem.pools[part.pool].kind).each_pass

    def _divided(self, stage: int, option: Settings, passes: Floats) -> tuple[Floats, Floats]:
        """By kind of range, the tail and the renewal with partitions, see prediction/divided.py.
        passes: [part, what, kind of range] of _passes()."""
        (first, end), parts = self.terms.alike[0], self.shape.stages[stage]
        ends = first + -(-np.maximum(end - first, 0) // option.chunks)  # of the first chunk
        last = np.maximum(ends, 1) - 1
        each = [self.layer_seconds(stage, part, option.weights) for part in parts]
        tail = self.whole(stage, option, "left")
        if option.schedule == "zero_bubble" and not self.loose:
            tail = tail + self.whole(stage, option, "beside")
        else:
            hidden = (passes[:, 3] - np.stack([times[1][last] for times in each])).max(axis=0)
            tail = tail + self.exposed(stage, option, "beside", first, ends, hidden)
        hidden = (passes[:, 2] - np.stack([times[0][last] for times in each])).max(axis=0)
        late = self.exposed(stage, option, "updates", first, ends, hidden)
        return tail, late + self.optimizer(stage, option.states, np.minimum)

    def sums(self, stage: int) -> Sums:
        """Of a stage, by kind of range, with partitions."""
        key = (
            "sums on NICs", self.half, self.settings.chunks, self.settings.recompute,
            self.shape.micro_batch, self.loose, self._levels,
        )  # fmt: skip
        return self.probes.once(stage, key, lambda: self._sums(stage))

    def _sums(self, stage: int) -> Sums:
        (first, end), chunks = self.terms.alike[0], self.settings.chunks
        ends, parts = first + -(-np.maximum(end - first, 0) // chunks), self.shape.stages[stage]
        last, every = np.maximum(ends, 1) - 1, []
        for option in self.options:
            shares = [self.probes.crossing(stage, option, what) for what in Reduction.PARTS]
            layers = [sums_of(self.probes.of_layers(stage, option, w)) for w in Reduction.PARTS]
            beside, updates = (shares[i] * layers[i][first, ends] for i in (0, 2))
            left = shares[1] * self.whole(stage, option, "left")
            if option.schedule == "zero_bubble" and not self.loose:
                left = self.whole(stage, option, "left") + self.whole(stage, option, "beside")
                left = left * self.probes.crossing(stage, option, "beside", "left")
                beside = np.zeros_like(left)
            hidden = np.full_like(left, NEVER)
            if chunks == 1:
                times = [self.layer_seconds(stage, part, option.weights)[0] for part in parts]
                each = [sums_of(own)[first, end] - own[last] for own in times]
                hidden = np.maximum.reduce(each)
            every.append((left, beside, updates, -hidden))
        left, beside, updates, hidden = np.min(every, axis=0)
        return Sums(left, beside, updates, -hidden)

    def exposed(
        self, stage: int, option: Settings, what: str, first: Indices, end: Indices, hidden: Floats
    ) -> Floats:
        """Seconds of messages of each layer that no pass of another layer hides, at least: those of
        the first layer, or of all layers of the first chunk, from first to end, beyond hidden."""
        layers = self.probes.of_layers(stage, option, what)
        together = sums_of(layers)[first, end] - hidden
        return np.maximum(layers[np.minimum(first, len(layers) - 1)], together)

    def whole(self, stage: int, option: Settings, what: str) -> Floats:
        """By kind of range, seconds of messages of all layers together."""

        def seconds() -> Floats:
            widest = max(part.tensor for part in self.shape.stages[stage])
            parameters = self.terms.parameters(widest)[self.terms.alike[0]]
            numbers = np.maximum(parameters, 0).tolist()
            return self.probes.reductions(stage, option, numbers, what)

        levels = (option.weights, option.states, option.codec)
        return self.probes.once(stage, ("whole", what, *levels), seconds)

    def optimizer(self, stage: int, states: str, which: np.ufunc = np.maximum) -> Floats:
        """By kind of range, seconds of the optimizer. which: of the parts, that of the slowest or
        of the fastest."""
        terms, parts = self.terms, self.shape.stages[stage]

        def seconds() -> Floats:
            share = terms.degree(parts, states)  # the most that there may be
            return np.asarray(
                which.reduce(
                    [
                        terms.problem.profile.step_seconds(
                            terms.problem.pools[part.pool].kind, part.tensor, 1
                        )
                        * terms.parameters(part.tensor)[terms.alike[0]]
                        / share
                        for part in parts
                    ]
                )
            )

        return self.probes.once(stage, ("optimizer", states, which.__name__), seconds)

    @cached_property
    def starts_known(self) -> bool:
        """Whether a stage's first pass starts as soon as the forward passes before it permit it,
        which then take what the profile says."""
        problem = self.terms.problem
        runtime, profile = problem.runtime, problem.profile
        parts = {part for stage in self.shape.stages for part in stage}
        return (
            not (runtime.blocking or runtime.parts or runtime.whole_parts or runtime.host_path)
            and runtime.messages == 1
            and profile.processors is None
            and all(part.context == 1 for part in parts)
            and all(
                part.tensor in self.terms.degrees(problem.pools[part.pool].kind) for part in parts
            )
            and all(
                profile.host_work_of(problem.pools[part.pool].kind) == NO_WORK for part in parts
            )
        )

    @cached_property
    def passes(self) -> list[int]:
        """By stage, the passes whose activations it keeps at its fullest."""
        stages = len(self.shape.stages)
        return [in_flight(self.settings, stages, self.micro_batches, s) for s in range(stages)]

    @cached_property
    def warm_up(self) -> list[int] | None:
        return (
            None
            if self.loose
            else warm_up(self.settings, len(self.shape.stages), self.micro_batches)
        )

    def shares(self, stage: int, option: Settings) -> Shares:
        """The ranks that share a stage's weights, and its gradients and states."""
        weights, states = (
            self.probes.share(stage, level) for level in (option.weights, option.states)
        )
        return weights, states

    def room(self, stage: int) -> tuple[Floats, Floats]:
        """[part, kind of range] -> bytes that kept activations may take, at most, and bytes of one
        pass."""
        settings, parts, terms = self.settings, self.shape.stages[stage], self.terms
        samples, several = self.shape.micro_batch, len(self.shape.stages) > 1

        def fixed(option: Settings) -> Floats:
            shares = self.shares(stage, option)
            needed = [
                terms.fixed_memory(part, samples, option, shares, several)[terms.alike[0]]
                for part in parts
            ]
            limits = np.array([terms.limit(part) for part in parts])
            return limits[:, None] - np.stack(needed)

        def kept() -> Floats:
            every = [terms.kept_memory(part, samples, settings) for part in parts]
            return np.stack([each[terms.alike[0]] for each in every])

        def most() -> Floats:
            return np.maximum.reduce([fixed(each) for each in self.options])

        own = (samples, settings.recompute)
        return (
            self.probes.once(stage, ("room", several, *own, self._levels), most),
            self.probes.once(stage, ("kept", *own, settings.chunks), kept),
        )

    @cached_property
    def fastest(self) -> set[int]:
        """The stages whose blocks take least time."""
        blocks = [
            max(float(np.add(*self.layer_seconds(s, part, "rank"))[1]) for part in parts)
            for s, parts in enumerate(self.shape.stages)
        ]
        return {s for s, each in enumerate(blocks) if each <= min(blocks)}
