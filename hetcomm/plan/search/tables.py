"""Tables of a shape with settings: seconds, memory and bounds, by stage and range of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetcomm.plan.search.bound import Pipeline, step_bound
from hetcomm.plan.search.division import (
    Bottlenecks,
    Floats,
    after_last,
    bottlenecks,
    least_before,
    sums_of,
)
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.settings import Settings, in_flight, warm_up
from hetcomm.plan.search.shapes import Part, Shape
from hetcomm.plan.search.terms import Shares, Terms

Spans = Sequence[Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Pipelines:
    """The pipelines of a shape. alpha: the fastest kind of device counts as this much faster when
    layers are divided, as in Holmes (arXiv 2312.03549)."""

    terms: Terms
    probes: Probes
    settings: Settings
    alpha: float = 1.0

    @property
    def shape(self) -> Shape:
        return self.probes.shape

    @cached_property
    def micro_batches(self) -> int:
        return self.probes.batch // (self.shape.replicas * self.shape.micro_batch)

    @property
    def run_of(self) -> list[int]:
        return self.probes.run_of

    @property
    def probed(self) -> list[bool]:
        return self.probes.probed

    def layer_seconds(self, stage: int, part: Part) -> tuple[Floats, Floats]:
        """By layer, forward and backward, with the gathering of partitioned weights."""
        times = self.terms.layer_seconds(part, self.shape.micro_batch, self.settings.recompute)
        if self.settings.weights == "rank" or not self.probed[stage]:
            return times
        least = self.probes.gather(self.run_of[stage], self.settings.weights)
        if not self.terms.problem.runtime.gather_beside:
            return times[0] + least, times[1] + least
        return np.maximum(times[0], least), np.maximum(times[1], least)

    def tail(self, stage: int) -> Floats:
        """[first, end] -> seconds from a stage's last backward pass to the end of the step."""
        parts = self.shape.stages[stage]
        found = np.zeros_like(self.terms.parameters(1), dtype=np.float64)
        for part in parts:
            kind = self.terms.problem.pools[part.pool].kind
            each = self.terms.problem.profile.step_seconds(kind, part.tensor, 1)
            share = self.terms.degree(parts, self.settings.states)  # the most that there may be
            found = np.maximum(found, each * self.terms.parameters(part.tensor) / share)
        if not self.probed[stage]:
            return found
        widest = max(part.tensor for part in parts)
        reduction = self.probes.reduction(
            self.run_of[stage], self.settings, self.terms.parameters(widest)
        )
        layers = np.maximum(-np.subtract.outer(*[np.arange(len(reduction))] * 2), 1)
        hidden = max((sums_of(self.layer_seconds(stage, part)[1]) for part in parts), key=np.sum)
        exposed = np.maximum(reduction / layers, reduction - hidden * (layers - 1) / layers)
        return found + exposed

    def load(self, stage: int) -> Floats:
        """[first, end] -> seconds that a step takes because of a stage, at least, beyond the way of
        the first activation to the stage."""
        settings, parts = self.settings, self.shape.stages[stage]

        def seconds() -> Floats:
            busy = [sums_of(np.add(*self.layer_seconds(stage, part))) for part in parts]
            return np.asarray(self.micro_batches * np.maximum.reduce(busy) + self.tail(stage))

        key = (
            "load", self.probed[stage], self.micro_batches, self.shape.micro_batch,
            settings.recompute, settings.weights, settings.states, settings.codec,
        )  # fmt: skip
        found = self.probes.once(self.run_of[stage], key, seconds)
        return found * self.alpha if self.alpha != 1 and stage not in self._fastest else found

    @cached_property
    def passes(self) -> list[int]:
        """By stage, the passes whose activations it keeps at its fullest."""
        stages = len(self.shape.stages)
        return [in_flight(self.settings, stages, self.micro_batches, s) for s in range(stages)]

    def shares(self, stage: int) -> Shares:
        """The ranks that share a stage's weights, and its gradients and states."""
        weights, states = self.settings.weights, self.settings.states
        if self.probed[stage]:
            run = self.run_of[stage]
            return self.probes.share(run, weights), self.probes.share(run, states)
        parts = self.shape.stages[stage]
        return self.terms.degree(parts, weights), self.terms.degree(parts, states)

    def room(self, stage: int) -> tuple[Floats, Floats]:
        """[part, first, end] -> bytes that kept activations may take, and bytes of one pass."""
        settings, parts = self.settings, self.shape.stages[stage]
        run, samples = self.run_of[stage], self.shape.micro_batch
        shares, several = self.shares(stage), len(self.shape.stages) > 1
        fixed = ("room", run, settings.recompute, *shares)
        if fixed not in self.probes.tables:
            self.probes.tables[fixed] = np.stack(
                [
                    self.terms.limit(part)
                    - self.terms.fixed_memory(part, samples, settings, shares, several)
                    for part in parts
                ]
            )
        kept = ("kept", run, settings.recompute, settings.chunks)
        if kept not in self.probes.tables:
            each = [self.terms.kept_memory(part, samples, settings) for part in parts]
            self.probes.tables[kept] = np.stack(each)
        return self.probes.tables[fixed], self.probes.tables[kept]

    @cached_property
    def tables(self) -> Bottlenecks:
        """Least bottlenecks of the seconds that a step takes because of one stage, at least."""
        loads = []
        for s in range(len(self.shape.stages)):
            room, kept = self.room(s)
            fits = (room >= self.passes[s] * kept).all(axis=0)
            loads.append(np.where(fits, self.load(s) + self.probes.way_in[s], np.inf))
        return bottlenecks(loads)

    @cached_property
    def _fastest(self) -> set[int]:
        """The stages whose blocks take least time."""
        blocks = [
            max(float(np.add(*self.layer_seconds(s, part))[1]) for part in parts)
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
                    part, self.shape.micro_batch, self.settings, self.shares(s), chunks, held
                )
                if needed > self.terms.limit(part):
                    return False
        return True

    def bound(self, spans: Spans) -> float:
        """Seconds that a step takes at least, with these layers."""
        parts = zip(*self.shape.stages, strict=True)  # the same pools in each stage, or one part
        return max(self._bound_of(list(line), spans) for line in parts)

    def _bound_of(self, line: Sequence[Part], spans: Spans) -> float:
        forward, backward, first, last, tails = [], [], [], [], []
        for s, part in enumerate(line):
            f, b = self._sums(s, part)
            chunks = spans[s]
            forward.append(sum(f[span] for span in chunks))
            backward.append(sum(b[span] for span in chunks))
            first.append(f[chunks[0]])
            last.append(b[chunks[0]])
            tails.append(self._tails[s][chunks[0]] if len(chunks) == 1 else 0.0)
        half = 0.5 if self.settings.schedule == "zero_bubble" else 0.0
        stages = len(line)
        return step_bound(
            Pipeline(
                forward=np.asarray(forward),
                backward=np.asarray(backward),
                deferred=np.asarray(backward) * half,
                first=np.asarray(first),
                last=np.asarray(last) * (1 - half),
                transfers=self.probes.transfers,
                tails=np.asarray(tails),
                micro_batches=self.micro_batches,
                warm_up=warm_up(self.settings, stages, self.micro_batches),
            )
        )

    def _sums(self, stage: int, part: Part) -> tuple[Floats, Floats]:
        """[first, end] -> seconds forward and backward."""
        key = ("sums", part, self.run_of[stage], self.probed[stage], self.settings.recompute,
               self.settings.weights)  # fmt: skip
        if key not in self.probes.tables:
            times = self.layer_seconds(stage, part)
            self.probes.tables[key] = np.stack([sums_of(each) for each in times])
        found = self.probes.tables[key]
        return found[0], found[1]

    @cached_property
    def _tails(self) -> list[Floats]:
        found: dict[tuple[int, bool], Floats] = {}
        for s, run in enumerate(self.run_of):
            key = (run, self.probed[s])
            if key not in found:
                found[key] = self.tail(s)
        return [found[run, self.probed[s]] for s, run in enumerate(self.run_of)]


def all_bottlenecks(pipelines: Sequence[Pipelines]) -> Floats:
    """The bottleneck of Pipelines.tables for each of several settings of one shape, at once."""
    probes = pipelines[0].probes
    layers = pipelines[0].terms.problem.model.layers
    least = np.repeat(after_last(layers)[None], len(pipelines), axis=0)
    run, stacks = None, (least, least, least)
    for s in range(len(probes.shape.stages) - 1, -1, -1):
        key = (pipelines[0].run_of[s], pipelines[0].probed[s])
        if key != run:
            rooms = [each.room(s) for each in pipelines]
            run = key
            stacks = (
                np.stack([each.load(s) for each in pipelines]),
                np.stack([room for room, _ in rooms]),
                np.stack([kept for _, kept in rooms]),
            )
        load, room, kept = stacks
        passes = np.asarray([each.passes[s] for each in pipelines])[:, None, None, None]
        fits = (room >= passes * kept).all(axis=1)
        least = least_before(np.where(fits, load + probes.way_in[s], np.inf), least)
    return np.asarray(least[:, 0])
