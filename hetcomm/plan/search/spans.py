"""One division of the layers among stages: whether it fits the memory, and its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetcomm.plan.search.bound import Pipeline, step_bound
from hetcomm.plan.search.division import Floats, sums_of
from hetcomm.plan.search.shapes import Part
from hetcomm.plan.search.tables import Pipelines

# Of each stage, the first layer and the end of each chunk.
Spans = Sequence[Sequence[tuple[int, int]]]


def spans_of(ends: Sequence[int], chunks: int) -> Spans:
    """The layers of each stage's chunks. ends: of the stages, for chunks of one stage in a row.

    The chunks of a stage differ by one layer at most; earlier ones have more.
    """
    stages, counts = len(ends), np.diff([0, *ends])
    sizes = [
        [int(count) // chunks + (c < int(count) % chunks) for count in counts]
        for c in range(chunks)
    ]
    flat = np.concatenate(([0], np.cumsum(sizes)))
    return [
        [(int(flat[c * stages + s]), int(flat[c * stages + s + 1])) for c in range(chunks)]
        for s in range(stages)
    ]


@dataclass(frozen=True)
class Division:
    """The layers of each chunk of pipelines with one option."""

    pipelines: Pipelines
    spans: Spans

    def may_fit(self) -> bool:
        """Whether the chunks fit the memory, as far as that follows from the first passes."""
        pipelines = self.pipelines
        if pipelines.settings.chunks == 1:
            return True  # the tables know
        stages = len(self.spans)
        for s, (parts, chunks) in enumerate(zip(pipelines.shape.stages, self.spans, strict=True)):
            held = [0] * len(chunks)
            for i in range(pipelines.passes[s]):
                held[i // stages % len(chunks)] += 1
            for part in parts:
                needed = pipelines.terms.chunk_memory(
                    part,
                    pipelines.shape.micro_batch,
                    pipelines.settings,
                    pipelines.shares(s, pipelines.settings),
                    chunks,
                    held,
                )
                if needed > pipelines.terms.limit(part):
                    return False
        return True

    def bound(self) -> float:
        """Seconds that a step takes at least, with these layers and the only option."""
        pipelines = self.pipelines
        return max(self._bound_of(index) for index in range(len(pipelines.shape.stages[0])))

    def _bound_of(self, index: int) -> float:
        """Of the parts at one place of the stages: the same pools in each stage, or one part."""
        pipelines = self.pipelines
        forward, backward = [], []
        for s, chunks in enumerate(self.spans):
            f, b = self._sums(s, pipelines.shape.stages[s][index])
            forward.append([f[span] for span in chunks])
            backward.append([b[span] for span in chunks])
        runtime = pipelines.terms.problem.runtime
        if runtime.partitions:
            every = [self._divided(s, chunks) for s, chunks in enumerate(self.spans)]
        else:
            every = [(self._tail(s, chunks), 0.0) for s, chunks in enumerate(self.spans)]
        tails, renewals = np.array(every).T
        return step_bound(
            Pipeline(
                forward=np.asarray(forward).T,
                backward=np.asarray(backward).T,
                deferred=np.asarray(backward).sum(axis=1) * pipelines.half,
                transfers=pipelines.probes.transfers,
                tails=tails,
                micro_batches=pipelines.micro_batches,
                warm_up=pipelines.warm_up,
                renewals=renewals,
                wrap=pipelines.probes.wrap if pipelines.settings.chunks > 1 else 0.0,
                clips=runtime.partitions and runtime.clips,
            )
        )

    def _sums(self, stage: int, part: Part) -> tuple[Floats, Floats]:
        """[first, end] -> seconds forward and backward."""
        pipelines = self.pipelines
        settings = pipelines.settings

        def sums() -> tuple[Floats, Floats]:
            forward, backward = pipelines.layer_seconds(stage, part, settings.weights)
            work = pipelines.host_work(part)
            return sums_of(forward) + work, sums_of(backward) + (2 if pipelines.half else 1) * work

        key = (
            "sums", part, pipelines.shape.micro_batch, settings.recompute, settings.weights,
            pipelines.half,
        )  # fmt: skip
        return pipelines.probes.once(stage, key, sums)

    def _tail(self, stage: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds from a stage's last pass to the end of the step."""
        pipelines = self.pipelines
        terms, parts, settings = (
            pipelines.terms,
            pipelines.shape.stages[stage],
            pipelines.settings,
        )

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
        reduction = float(
            pipelines.probes.reductions(stage, settings, [int(parameters(widest))])[0]
        )
        layers = sum(end - first for first, end in chunks)
        hidden = min(float(self._sums(stage, part)[1][chunks[0]]) for part in parts)
        exposed = reduction - hidden * (1 - pipelines.half) * (layers - 1) / layers
        return optimizer + max(reduction / layers, exposed)

    def _divided(self, stage: int, chunks: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """The tail and the renewal with partitions, at least."""
        pipelines = self.pipelines
        option, probes, parts = (
            pipelines.settings,
            pipelines.probes,
            pipelines.shape.stages[stage],
        )
        if len(chunks) == 1:
            found, kind = pipelines.seconds(stage), pipelines.terms.alike[1][chunks[0]]
            return float(found.tail[kind]), float(found.renewal[kind])
        first, end = (np.array([each]) for each in chunks[0])
        sums = [self._sums(stage, part) for part in parts]
        hidden = [
            np.array([max(float(own[i][first, end - 1][0]) for own in sums)]) for i in range(2)
        ]
        widest = max(part.tensor for part in parts)
        parameters = sum(int(pipelines.terms.parameters(widest)[span]) for span in chunks)
        tail = probes.reductions(stage, option, [parameters], "left")
        tail = tail + pipelines.exposed(stage, option, "beside", first, end, hidden[1])
        late = pipelines.exposed(stage, option, "updates", first, end, hidden[0])
        optimizer = pipelines.optimizer(stage, option.states, np.minimum)
        renewal = sum(float(optimizer[pipelines.terms.alike[1][span]]) for span in chunks)
        return float(tail[0]), float(late[0]) + renewal
