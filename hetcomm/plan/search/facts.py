"""What the stages of a shape need: seconds and bytes, computed once for each kind of stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.prediction.memory import kept_bytes, rank_memory
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.settings import Settings, in_flight
from hetcomm.plan.search.space import Floats
from hetcomm.plan.search.terms import Terms


class Line(NamedTuple):
    """Seconds of stages, [part, setting, stage]: of one block, and of all else."""

    block: Floats
    rest: Floats

    def of(self, blocks: NDArray[np.int64] | Floats) -> Floats:
        """Of stages with so many blocks."""
        return self.block * blocks + self.rest

    def blocks(self, seconds: Floats) -> Floats:
        """That take so many seconds."""
        return (seconds - self.rest) / self.block

    def plus(self, other: Line) -> Line:
        return Line(self.block + other.block, self.rest + other.rest)


class Facts(NamedTuple):
    """What stages need, [part, setting, stage].

    Seconds, but for the last field.
    """

    passes: Line  # all passes of a step
    returned: Line  # all passes until the last backward pass is over
    final: Line  # the last backward pass
    tail: Line  # sums after the passes
    renewal: Line  # from the gradients' norm until the next step may begin
    ahead: Line  # the first chunk's first pass, and its transfer
    back: Line  # the first chunk's last backward pass, and its transfer
    sums: Floats  # in which a block's sums keep the hosts' NICs busy
    trip: Floats  # of a micro-batch through a block, forward and backward
    most: Floats  # blocks that fit the memory

    def of(self, rows: NDArray[np.intp] | int) -> Facts:
        """Of some settings, or [part, stage] of one."""
        every: list[Any] = [
            Line(*(values[:, rows] for values in fact)) if isinstance(fact, Line) else fact[:, rows]
            for fact in self
        ]
        return Facts(*every)


@dataclass(frozen=True)
class Stages:
    """The stages of a shape with several settings."""

    terms: Terms
    probes: Probes
    options: Sequence[Settings]

    def facts(self) -> Facts:
        """Of all stages. Stages with equal prices and ends are computed once."""
        shape, probes, options = self.probes.shape, self.probes, self.options
        stages = len(shape.stages)
        alike: dict[object, int] = {}
        place = [
            alike.setdefault((*key, s == 0, s + 1 == stages), len(alike))
            for s, key in enumerate(probes.keys)
        ]
        of_alike = [place.index(i) for i in range(len(alike))]
        parts = range(len(shape.stages[0]))

        def table(names: Sequence[str], of: Callable[..., tuple[float, ...]]) -> Floats:
            """[what, part, setting, stage] of what depends on some fields of the settings."""
            values = [tuple(getattr(option, name) for name in names) for option in options]
            unlike = list(dict.fromkeys(values))
            rows = np.array(
                [[[of(p, s, *value) for s in of_alike] for value in unlike] for p in parts]
            )
            row = [unlike.index(value) for value in values]
            return np.moveaxis(rows[:, row][:, :, place], -1, 0)

        forward, backward, forward_rest, backward_rest, way, way_back, work = table(
            ("recompute", "weights"), self._passes
        )
        left, beside, together, updates, sums, step = table(
            ("weights", "states", "codec"), self._sums
        )
        room, block, kept_first, kept_last, kept = table(
            ("recompute", "weights", "states"), self._memory
        )

        def of_each(values: Iterable[float]) -> Floats:
            return np.array(list(values), dtype=np.float64)[:, None]

        half = of_each(0.5 * (each.schedule == "zero_bubble") for each in options)
        chunks = of_each(each.chunks for each in options)
        count = np.array(shape.micro_batches, dtype=np.float64)[:, None, None]
        moved = np.array([*probes.transfers, 0.0])
        deferred = half * np.minimum(np.arange(1, stages + 1), count)
        work_back = np.where(half > 0, 2, 1) * work
        # The last backward pass of the first chunk waits for its sums, but for one. Weights' passes
        # hide none, and no embedding comes after the sums of later stages.
        later = np.arange(stages) > 0
        left = left + np.where(half > 0, together, 0.0)
        beside = np.where(half > 0, 0.0, beside)
        late, soon = np.maximum(0.0, beside - backward), np.maximum(0.0, updates - forward)
        passes = Line(
            count * (forward + backward) + late / chunks,
            count * (forward_rest + backward_rest + chunks * (work + work_back)) - late,
        )
        held = np.array(
            [
                [[in_flight(each, stages, m, s) for s in range(stages)] for each in options]
                for m in shape.micro_batches
            ]
        )
        # With chunks the last one keeps a single pass, and a chunk may have one block less.
        most = room - held / chunks * kept_first - np.where(chunks > 1, 1, held) * kept_last
        most = np.floor(most / (block + held / chunks * kept) + 1e-9)
        return Facts(
            passes=passes,
            returned=passes.plus(Line(-deferred * backward, -deferred * backward_rest)),
            final=Line(backward + late, backward_rest + work_back * chunks),
            tail=Line(left, np.minimum(beside, backward) * later),
            renewal=Line(step + soon / chunks, updates * later - soon - way),
            ahead=Line(forward, way + work + moved),
            back=Line((1 - half) * backward + late, (1 - half) * way_back - late + work + moved),
            sums=np.where(chunks > 1, 0.0, sums),  # those of later chunks are sent before
            trip=forward + (1 - half) * backward,
            most=np.maximum(0, most + (chunks > 1)),
        )

    def _passes(self, index: int, stage: int, recompute: bool, weights: str) -> tuple[float, ...]:
        """Seconds of a micro-batch: of a block forward and backward, of the other layers, of these
        in the first chunk, and of the host in each pass."""
        terms, samples = self.terms, self.probes.shape.micro_batch
        part = self.probes.shape.stages[stage][index]

        def of_layer(kind: str) -> Floats:
            times = terms.times(part, samples, kind)
            seconds = np.array([times.forward, times.backward])
            if recompute and kind == "block":
                seconds[1] += times.forward
            gather = self.probes.gather(stage, weights, kind)
            beside = terms.problem.runtime.gather_beside
            return np.maximum(seconds, gather) if beside else seconds + gather

        ends = [of_layer(kind) for kind in self._ends(stage)]
        first = ends[0] if stage == 0 else np.zeros(2)
        device = terms.problem.pools[part.pool].kind
        work = terms.problem.profile.host_work_of(device).each_pass
        return (*of_layer("block"), *sum(ends, np.zeros(2)), *first, work)

    def _ends(self, stage: int) -> list[str]:
        """The layers of a stage that are no blocks."""
        last = stage + 1 == len(self.probes.shape.stages)
        return ["embedding"] * (stage == 0) + ["head"] * last

    def _sums(
        self, index: int, stage: int, weights: str, states: str, codec: str
    ) -> tuple[float, ...]:
        """Seconds of a block's messages and optimizer; see prediction/divided.py. Other runtimes
        have none that is sure."""
        problem = self.terms.problem
        if not problem.runtime.partitions:
            return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        sums = self.probes.sums(stage, weights, states, codec)
        part = self.probes.shape.stages[stage][index]
        share = self.probes.share(stage, states)
        parameters = problem.model.parameters("block", part.tensor) / share
        device = problem.pools[part.pool].kind
        step = problem.profile.step_seconds(device, part.tensor, parameters)
        crowding = problem.profile.crowding(self.probes.shape.ranks)
        if crowding > 1:  # passes may hide no sums, see Synchronization.hides
            sums = sums._replace(beside=0.0)
        return (*sums, step * crowding)

    def _memory(
        self, index: int, stage: int, recompute: bool, weights: str, states: str
    ) -> tuple[float, ...]:
        """Bytes: the room for blocks, of a block, and of what a pass keeps of the embedding, of the
        head and of a block."""
        shape, problem = self.probes.shape, self.terms.problem
        part, model, ends = shape.stages[stage][index], problem.model, self._ends(stage)
        shares = [self.probes.share(stage, level) for level in (weights, states)]

        def kept(kind: str) -> float:
            return kept_bytes(model, problem.profile, recompute, kind, part.tensor)

        samples = shape.micro_batch / part.context
        one, two = (
            rank_memory(
                model,
                problem.runtime,
                problem.pools[part.pool].kind,
                kinds=[*ends, "block"],
                parameters=blocks * model.parameters("block", part.tensor)
                + sum(model.parameters(kind, part.tensor) for kind in ends),
                tensor=part.tensor,
                samples=samples,
                recompute=recompute,
                held=0.0,
                shares=(shares[0], shares[1], shares[1]),
                pipelined=len(shape.stages) > 1,
            ).total
            for blocks in (1, 2)
        )
        room = self.terms.memory(part) - one + (two - one)
        first, last = (samples * kept(kind) * (kind in ends) for kind in ("embedding", "head"))
        return room, two - one, first, last, samples * kept("block")
