"""Lower bounds of a pipeline's step time, from dependencies alone.

Every schedule computes each micro-batch on each stage, forward and backward, one after another. The
first activation reaches stage s after the forward passes before it. The last gradient of stage s
passes all stages before it on its way back. A transfer occupies no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetcomm.plan.search.division import Floats


@dataclass(frozen=True)
class Pipeline:
    """Seconds of one replica's pipeline, by stage.

    forward, backward: of one micro-batch. deferred: the part of backward for which no other stage
    waits. first, last: forward and backward without deferred, of the first chunk. transfers: of an
    activation from each stage to the next; a gradient takes as long. tails: after a stage's last
    pass to the end of the step. renewals: from a tail's end until the stage has the next step's
    weights; that step may have begun on earlier stages. warm_up: forward passes of a stage before
    its first backward pass; None where the schedule has chunks.
    """

    forward: Floats
    backward: Floats
    deferred: Floats
    first: Floats
    last: Floats
    transfers: Floats
    tails: Floats
    micro_batches: int
    chunks: int
    warm_up: Sequence[int] | None
    renewals: Floats | float = 0.0


def step_bound(pipeline: Pipeline) -> float:
    """Seconds that a step takes at least.

    A stage is busy for micro_batches * (forward + backward). Without chunks, its first backward
    pass waits for the trip of the first micro-batch to the last stage and back, during which the
    stage computes no more than its warm-up. Each later pass forward waits for the trip of the
    micro-batch before it by the warm-up. A stage defers one more pass of weights than the stage
    before it. A link carries one activation at a time.
    """
    micro_batches = pipeline.micro_batches
    transfers = np.concatenate((pipeline.transfers, [0.0]))
    ahead, back = pipeline.first + transfers, pipeline.last + transfers
    way_in, way_out = _before(ahead), _before(back)
    trip = _from(ahead + back)
    deferred = np.minimum(np.arange(1, len(trip) + 1), micro_batches) * pipeline.deferred
    busy = micro_batches * (pipeline.forward + pipeline.backward) - deferred
    linked = ahead + back + (micro_batches * pipeline.chunks - 1) * transfers
    returned = np.maximum(np.maximum(busy, trip), np.where(transfers > 0, linked, 0.0))
    if pipeline.warm_up is not None:
        warm = np.asarray(pipeline.warm_up)
        waited = busy + trip - warm * pipeline.forward - pipeline.last
        rounds = (micro_batches - 1) // warm + 1
        replaced = (micro_batches - 1) % warm * pipeline.forward + rounds * trip
        returned = np.maximum(returned, np.maximum(waited, replaced))
    after = pipeline.tails + deferred
    through = (way_in + returned + way_out)[:, None] + (after - way_out)[None, :]
    period = returned + after + pipeline.renewals
    return max(float(through[np.tri(len(trip), dtype=bool)].max()), float(period.max()))


def _before(values: Floats) -> Floats:
    """[s] -> the sum over the stages before s."""
    return np.concatenate(([0.0], np.cumsum(values)[:-1]))


def _from(values: Floats) -> Floats:
    """[s] -> the sum over the stages from s on."""
    return np.asarray(values.sum() - _before(values))
