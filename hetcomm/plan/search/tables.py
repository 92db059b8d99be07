"""Tables of a shape with settings: seconds, memory and bounds, by stage and range of layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetcomm.plan.search.bound import Pipeline, step_bound
from hetcomm.plan.search.division import (
    NEVER,
    Chain,
    Floats,
    Load,
    after_last,
    chain,
    empty,
    sums_of,
)
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.settings import Settings, in_flight, warm_up
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.terms import Indices, Shares, Terms

Spans = Sequence[Sequence[tuple[int, int]]]


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

    def seconds(self, stage: int) -> Floats:
        """[what, kind of range] -> seconds, at least. What: forward and backward of a micro-batch,
        these of the first chunk, the tail without deferred passes, alone, renewal and steady; see
        Load. The kinds are those of Terms.alike."""
        key = (
            "seconds", self.micro_batches, self.shape.micro_batch, self.half,
            self.settings.chunks, self.settings.recompute, self.loose, self._levels,
        )  # fmt: skip
        return self.probes.once(stage, key, lambda: self._seconds(stage))

    @cached_property
    def _levels(self) -> tuple[tuple[str, str, str], ...]:
        return tuple((each.weights, each.states, each.codec) for each in self.options)

    def _seconds(self, stage: int) -> Floats:
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
            reduction = np.stack([self._whole(stage, each, "seconds") for each in self.options])
            exposed = np.maximum(reduction / layers, reduction - hidden * (layers - 1) / layers)
            optimizer = [self._optimizer(stage, each.states) for each in self.options]
            tail = exposed + np.stack(optimizer)
        busy = self.micro_batches * (passes[:, 0] + passes[:, 1]).max(axis=0)
        own = passes[self.probes.slowest]
        more = np.stack((tail, busy + tail, renewal, busy + tail + renewal))
        return np.concatenate((own, more)).min(axis=1)

    def _passes(self, stage: int, part: Part, weights: str) -> Floats:
        """Forward and backward by kind of range, and these of the first chunk."""
        chunks = self.settings.chunks

        def seconds() -> Floats:
            first, end = self.terms.alike[0]
            times = self.layer_seconds(stage, part, weights)
            whole = [sums_of(each)[first, end] for each in times]
            if chunks == 1:
                return np.stack([*whole, *whole])
            layers, embedding = -(-np.maximum(end - first, 0) // chunks), first == 0
            own = [(layers - embedding) * each[1] + embedding * each[0] for each in times]
            return np.stack([*whole, *own])

        key = (
            "passes", part, self.shape.micro_batch, self.settings.recompute, chunks, weights
        )  # fmt: skip
        return self.probes.once(stage, key, seconds)

    def _divided(self, stage: int, option: Settings, passes: Floats) -> tuple[Floats, Floats]:
        """By kind of range, the tail and the renewal with partitions, see prediction/divided.py.
        passes: [part, what, kind of range] of _passes()."""
        (first, end), parts = self.terms.alike[0], self.shape.stages[stage]
        ends = first + -(-np.maximum(end - first, 0) // option.chunks)  # of the first chunk
        last = np.maximum(ends, 1) - 1
        each = [self.layer_seconds(stage, part, option.weights) for part in parts]
        tail = self._whole(stage, option, "left")
        if option.schedule == "zero_bubble" and not self.loose:
            tail = tail + self._whole(stage, option, "beside")
        else:
            hidden = (passes[:, 3] - np.stack([times[1][last] for times in each])).max(axis=0)
            tail = tail + self._exposed(stage, option, "beside", first, ends, hidden)
        hidden = (passes[:, 2] - np.stack([times[0][last] for times in each])).max(axis=0)
        late = self._exposed(stage, option, "updates", first, ends, hidden)
        return tail, late + self._optimizer(stage, option.states, np.minimum)

    def _exposed(
        self, stage: int, option: Settings, what: str, first: Indices, end: Indices, hidden: Floats
    ) -> Floats:
        """Seconds of messages of each layer that no pass of another layer hides, at least: those of
        the first layer, or of all layers of the first chunk, from first to end, beyond hidden."""
        layers = self.probes.of_layers(stage, option, what)
        together = sums_of(layers)[first, end] - hidden
        return np.maximum(layers[np.minimum(first, len(layers) - 1)], together)

    def _whole(self, stage: int, option: Settings, what: str) -> Floats:
        """By kind of range, seconds of messages of all layers together."""

        def seconds() -> Floats:
            widest = max(part.tensor for part in self.shape.stages[stage])
            parameters = self.terms.parameters(widest)[self.terms.alike[0]]
            numbers = np.maximum(parameters, 0).tolist()
            return self.probes.reductions(stage, option, numbers, what)

        levels = (option.weights, option.states, option.codec)
        return self.probes.once(stage, ("whole", what, *levels), seconds)

    def _optimizer(self, stage: int, states: str, which: np.ufunc = np.maximum) -> Floats:
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

    def chain(self) -> Chain:
        """The stages' tables."""
        stages = range(len(self.shape.stages))
        columns = _Columns([self])
        loads = [loads_of([self], columns, s) for s in stages]
        return chain([Load(*(each[0] for each in load)) for load in loads])

    @cached_property
    def fastest(self) -> set[int]:
        """The stages whose blocks take least time."""
        blocks = [
            max(float(np.add(*self.layer_seconds(s, part, "rank"))[1]) for part in parts)
            for s, parts in enumerate(self.shape.stages)
        ]
        return {s for s, each in enumerate(blocks) if each <= min(blocks)}

    def spans(self, ends: Sequence[int]) -> Spans:
        """The layers of each stage's chunks, for a stage that has so many layers.

        The chunks of a stage differ by one layer at most; earlier ones have more.
        """
        stages, chunks = len(ends), self.settings.chunks
        counts = np.diff([0, *ends])
        sizes = [
            [int(count) // chunks + (c < int(count) % chunks) for count in counts]
            for c in range(chunks)
        ]
        flat = np.concatenate(([0], np.cumsum(sizes)))
        return [
            [(int(flat[c * stages + s]), int(flat[c * stages + s + 1])) for c in range(chunks)]
            for s in range(stages)
        ]

    def may_fit(self, spans: Spans) -> bool:
        """Whether the chunks fit the memory, as far as that follows from the first passes."""
        if self.settings.chunks == 1:
            return True  # the tables know
        stages = len(spans)
        for s, (parts, chunks) in enumerate(zip(self.shape.stages, spans, strict=True)):
            held = [0] * len(chunks)
            for i in range(self.passes[s]):
                held[i // stages % len(chunks)] += 1
            for part in parts:
                needed = self.terms.chunk_memory(
                    part,
                    self.shape.micro_batch,
                    self.settings,
                    self.shares(s, self.settings),
                    chunks,
                    held,
                )
                if needed > self.terms.limit(part):
                    return False
        return True

    def bound(self, spans: Spans) -> float:
        """Seconds that a step takes at least, with these layers and the only option."""
        return max(self._bound_of(index, spans) for index in range(len(self.shape.stages[0])))

    def _bound_of(self, index: int, spans: Spans) -> float:
        """Of the parts at one place of the stages: the same pools in each stage, or one part."""
        forward, backward, first, last = [], [], [], []
        for s, chunks in enumerate(spans):
            f, b = self._sums(s, self.shape.stages[s][index])
            forward.append(sum(f[span] for span in chunks))
            backward.append(sum(b[span] for span in chunks))
            first.append(f[chunks[0]])
            last.append(b[chunks[0]])
        if self.terms.problem.runtime.partitions:
            pairs = [self._divided_tail(s, chunks) for s, chunks in enumerate(spans)]
        else:
            pairs = [(self._tail(s, chunks), 0.0) for s, chunks in enumerate(spans)]
        tails, renewals = zip(*pairs, strict=True)
        return step_bound(
            Pipeline(
                forward=np.asarray(forward),
                backward=np.asarray(backward),
                deferred=np.asarray(backward) * self.half,
                first=np.asarray(first),
                last=np.asarray(last) * (1 - self.half),
                transfers=self.probes.transfers,
                tails=np.asarray(tails),
                micro_batches=self.micro_batches,
                chunks=self.settings.chunks,
                warm_up=self.warm_up,
                renewals=np.asarray(renewals),
            )
        )

    def _sums(self, stage: int, part: Part) -> tuple[Floats, Floats]:
        """[first, end] -> seconds forward and backward."""
        settings = self.settings

        def sums() -> tuple[Floats, Floats]:
            forward, backward = self.layer_seconds(stage, part, settings.weights)
            return sums_of(forward), sums_of(backward)

        key = ("sums", part, self.shape.micro_batch, settings.recompute, settings.weights)
        return self.probes.once(stage, key, sums)

    def _tail(self, stage: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds from a stage's last pass to the end of the step."""
        terms, parts, settings = self.terms, self.shape.stages[stage], self.settings

        def parameters(tensor: int) -> float:
            return float(sum(terms.parameters(tensor)[span] for span in chunks))

        optimizer = max(
            terms.problem.profile.step_seconds(
                terms.problem.pools[part.pool].kind,
                part.tensor,
                parameters(part.tensor) / terms.degree(parts, settings.states),
            )
            for part in parts
        )
        widest = max(part.tensor for part in parts)
        reduction = float(self.probes.reductions(stage, settings, [int(parameters(widest))])[0])
        layers = sum(end - first for first, end in chunks)
        hidden = min(float(self._sums(stage, part)[1][chunks[0]]) for part in parts)
        exposed = reduction - hidden * (1 - self.half) * (layers - 1) / layers
        return optimizer + max(reduction / layers, exposed)

    def _divided_tail(self, stage: int, chunks: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """The tail and the renewal with partitions, at least."""
        option, probes, parts = self.settings, self.probes, self.shape.stages[stage]
        if len(chunks) == 1:
            found = self.seconds(stage)[:, self.terms.alike[1][chunks[0]]]
            return float(found[4]), float(found[6])
        first, end = (np.array([each]) for each in chunks[0])
        sums = [self._sums(stage, part) for part in parts]
        hidden = [
            np.array([max(float(own[i][first, end - 1][0]) for own in sums)]) for i in range(2)
        ]
        widest = max(part.tensor for part in parts)
        parameters = sum(int(self.terms.parameters(widest)[span]) for span in chunks)
        tail = probes.reductions(stage, option, [parameters], "left")
        tail = tail + self._exposed(stage, option, "beside", first, end, hidden[1])
        late = self._exposed(stage, option, "updates", first, end, hidden[0])
        optimizer = self._optimizer(stage, option.states, np.minimum)
        renewal = sum(float(optimizer[self.terms.alike[1][span]]) for span in chunks)
        return float(tail[0]), float(late[0]) + renewal


class _Columns:
    """What distinguishes several settings of one shape, [settings, 1]."""

    def __init__(self, pipelines: Sequence[Pipelines]) -> None:
        def of_each(values: Iterable[float]) -> Floats:
            return np.array(list(values), dtype=np.float64)[:, None]

        micro_batches, stages = pipelines[0].micro_batches, len(pipelines[0].shape.stages)
        self.half = of_each(each.half for each in pipelines)
        self.chunks = of_each(each.settings.chunks for each in pipelines)
        self.unwaiting = of_each(each.warm_up is None for each in pipelines) > 0
        # [stage, settings, 1]
        self.passes = np.array([each.passes for each in pipelines]).T[..., None]
        warm = [each.warm_up or [micro_batches] * stages for each in pipelines]
        self.warm = np.array(warm, dtype=np.float64).T[..., None]


def loads_of(pipelines: Sequence[Pipelines], columns: _Columns, stage: int) -> Load:
    """Of several settings of one shape, [settings, first, end]."""
    probes, terms = pipelines[0].probes, pipelines[0].terms
    micro_batches, stages = pipelines[0].micro_batches, len(probes.shape.stages)
    forward, backward, first, last, tail, alone, renewal, steady = np.stack(
        [each.seconds(stage) for each in pipelines], axis=1
    )
    (firsts, ends), kind_of = terms.alike
    half, warm = columns.half, columns.warm[stage]
    deferred = min(stage + 1, micro_batches) * half * backward
    back = last * (1 - half)
    longest = np.where(columns.unwaiting, NEVER, warm * forward + back)
    transfer = float(probes.transfers[stage]) if stage + 1 < stages else 0.0
    ahead, back = first + transfer, back + transfer
    busy = micro_batches * (forward + backward) - deferred
    fits = ends - firsts >= columns.chunks
    if not pipelines[0].loose:
        rooms = [each.room(stage) for each in pipelines]
        room, kept = (np.stack([each[which] for each in rooms]) for which in (0, 1))
        fits &= (room >= columns.passes[stage][..., None] * kept).all(axis=1)
    found = [
        np.where(fits, busy, np.inf),
        alone,
        tail + deferred,
        ahead,
        back,
        longest,
        np.where(columns.unwaiting, 0.0, (micro_batches - 1) % warm * forward),
        renewal,
        steady,
    ]
    if pipelines[0].alpha != 1 and stage not in pipelines[0].fastest:
        found = [each * pipelines[0].alpha for each in found]
    busy, alone, tail, ahead, back, longest, spare, renewal, steady = (
        each[:, kind_of] for each in found
    )
    none = empty(terms.problem.model.layers)
    rounds = np.where(columns.unwaiting, 1, (micro_batches - 1) // warm + 1)[:, 0]
    arrivals = (micro_batches * columns.chunks[:, 0] - 1) * transfer
    return Load(
        busy + none, alone, tail, ahead + none, back, longest, spare, rounds, arrivals, renewal,
        steady,
    )  # fmt: skip


def all_bounds(pipelines: Sequence[Pipelines]) -> Floats:
    """Chain.bound for each of several settings of one shape, at once."""
    columns = _Columns(pipelines)
    least = after_last(pipelines[0].terms.problem.model.layers)
    for stage in range(len(pipelines[0].shape.stages) - 1, -1, -1):
        least = least.before(loads_of(pipelines, columns, stage))
    return least.step[:, 0]
