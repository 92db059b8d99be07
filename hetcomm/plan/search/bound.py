"""Lower bounds of a pipeline's step time, from dependencies alone.

Every schedule computes each micro-batch on each stage, forward and backward, one after another. The
first activation reaches stage s after the forward passes before it. The last gradient of stage s
passes all stages before it on its way back. A transfer occupies no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.search.division import Floats, exclusive_cumsum


@dataclass(frozen=True)
class Pipeline:
    """Seconds of one replica's pipeline, by stage.

    forward, backward: of one micro-batch, [chunk, stage]. deferred: the part of backward for which
    no other stage waits. transfers: of an activation from each stage to the next; a gradient takes
    as long. wrap: the same from the last stage to the first one's next chunk. tails: after a
    stage's last pass to the end of the step. renewals: from a tail's end until the stage has the
    next step's weights; that step may have begun on earlier stages. clips: whether all stages wait
    for each other after their tails. warm_up: forward passes of a
    stage before its first backward pass; None for the interleaved schedule.
    """

    forward: Floats
    backward: Floats
    deferred: Floats
    transfers: Floats
    tails: Floats
    micro_batches: int
    warm_up: Sequence[int] | None
    renewals: Floats | float = 0.0
    wrap: float = 0.0
    clips: bool = False


def step_bound(pipeline: Pipeline) -> float:
    """Seconds that a step takes at least.

    A stage is busy for micro_batches * (forward + backward). Without chunks, its first backward
    pass waits for the trip of the first micro-batch to the last stage and back, during which the
    stage computes no more than its warm-up. Each later pass forward waits for the trip of the
    micro-batch before it by the warm-up. A stage defers one more pass of weights than the stage
    before it. A link carries one activation at a time.
    """
    micro_batches, chunks = pipeline.micro_batches, len(pipeline.forward)
    transfers = np.concatenate((pipeline.transfers, [0.0]))
    forward, backward = pipeline.forward.sum(axis=0), pipeline.backward.sum(axis=0)
    ahead = pipeline.forward[0] + transfers
    last = pipeline.backward[0] - pipeline.deferred
    back = last + transfers
    way_in, way_out = exclusive_cumsum(ahead), exclusive_cumsum(back)
    trip = _from(ahead + back)
    deferred = np.minimum(np.arange(1, len(trip) + 1), micro_batches) * pipeline.deferred
    busy = micro_batches * (forward + backward) - deferred
    linked = ahead + back + (micro_batches * chunks - 1) * transfers
    returned = np.maximum(np.maximum(busy, trip), np.where(transfers > 0, linked, 0.0))
    if pipeline.warm_up is not None:
        warm = np.asarray(pipeline.warm_up)
        waited = busy + trip - warm * forward - last
        rounds = (micro_batches - 1) // warm + 1
        replaced = (micro_batches - 1) % warm * forward + rounds * trip
        returned = np.maximum(returned, np.maximum(waited, replaced))
    elif len(trip) > 1:
        returned = np.maximum(returned, _turned(pipeline, transfers))
    after = pipeline.tails + deferred
    through = np.maximum.accumulate((way_in + returned + way_out)[::-1])[::-1] - way_out
    ends = float((through + after).max())
    renewals = np.broadcast_to(pipeline.renewals, len(trip))
    if pipeline.clips:
        ends += float(renewals[0])
    return max(ends, float((returned + after + renewals).max()))


def _turned(pipeline: Pipeline, transfers: Floats) -> Floats:
    """By stage, seconds from its first pass to its last of the interleaved schedule, at least.

    The passes i of a stage go through the stages: F(i) of stage s leads to F(i) of stage s + 1, and
    F(i) of the last stage to F(i + S) of the first one, if that is the same group's next chunk;
    backward passes likewise. Stage s has w(s) = (C - 1) S + 2 (S - 1 - s) forward passes before
    B(0); later B(i) follows F(i + w), and F(i + w + 1) follows B(i). Hence these paths:

    - Before F((C - 1) S) an activation goes around all stages C - 1 times, and after the last
      backward pass but (C - 1) S a gradient does.
    - From F(i) of stage s forward to stage d, and back to s, then F(i + 2 (d - s) + 1) of stage s:
      a turn of 2 (d - s) + 1 passes. Of the paths that start at so many neighbouring passes each
      pass has one, so their mean takes the sum of all passes over their number.
    - A gradient goes around C - 1 times in each group. A turn over half of the stages leads from
      one group to the next.
    """
    forward, backward = pipeline.forward, pipeline.backward
    chunks, stages = forward.shape
    micro_batches, passes = pipeline.micro_batches, pipeline.micro_batches * chunks
    own, way = np.arange(stages), exclusive_cumsum(transfers)
    first = (chunks - 1) * stages  # the warm-up of the last stage
    warm = np.minimum(first + 2 * (stages - 1 - own), passes)
    turned = passes - warm
    # [d, t]: of stage t, the forward passes before stage d's warm-up is over, the backward passes
    # until stage d has no more forward pass.
    before, until = _passed(forward, warm), _passed(backward[::-1], turned)
    within = micro_batches * forward.sum(axis=0) - before + until
    within = within + 2 * turned[:, None] * transfers
    sums = np.concatenate((np.zeros((stages, 1)), np.cumsum(within, axis=1)), axis=1)
    between = sums[own, own + 1][:, None] - sums[:, :-1] - 2 * (turned * transfers)[:, None]
    around = (chunks - 1) * (float(way[-1]) + pipeline.wrap)
    opened = around + forward[:-1].sum() + exclusive_cumsum(forward[-1] - forward[0])
    closed = around + backward[:-1].sum() + exclusive_cumsum(backward[-1] - backward[0])
    waits = np.maximum(opened - stages * forward[:-1].sum(axis=0), 0.0)
    waits = waits + np.maximum(closed - stages * backward[:-1].sum(axis=0), 0.0)
    # [d, s]
    number = np.minimum(2 * (own[:, None] - own) + 1, turned[:, None])
    possible = number > 0
    number = np.maximum(number, 1)
    edges = (number - 1) / 2 * (forward.min(axis=0) + backward.min(axis=0))
    rest = micro_batches * backward.sum(axis=0) - until
    found = np.where(possible, before + between / number + rest + edges + waits, 0.0).max(axis=0)
    found[0] = max(found[0], _grouped(pipeline, transfers, around))
    return np.asarray(found)


def _grouped(pipeline: Pipeline, transfers: Floats, around: float) -> float:
    """See _turned(): of the first stage, with gradients that go around in each group."""
    forward, backward = pipeline.forward, pipeline.backward
    stages, groups = forward.shape[1], pipeline.micro_batches // forward.shape[1]
    # A group's micro-batch r leads to the next group's r, or to r + 1 and r by turns.
    turn = _from(backward[0] + forward[-1] + 2 * transfers)
    halves = [stages - 1 - each // 2 for each in (stages, stages - 1)]  # the turns' first stages
    longer, shorter = groups // 2, (groups - 1) // 2
    found = forward.sum() + backward[0].sum() + 2 * float(transfers.sum()) + around
    found += groups * (backward[1:].sum() + around)
    found += longer * turn[halves[0]] + shorter * turn[halves[1]]
    return float(found)


def _passed(values: Floats, counts: NDArray[np.int64]) -> Floats:
    """[count, stage] -> seconds of the first so many passes. values: [chunk, stage] of one pass, in
    the order of a group's chunks; a group has as many micro-batches as there are stages."""
    chunks, stages = values.shape
    sums = stages * np.concatenate((np.zeros((1, stages)), np.cumsum(values, axis=0)))
    groups, left = np.divmod(counts, stages * chunks)
    chunk, left = np.divmod(left, stages)
    return np.asarray(groups[:, None] * sums[-1] + sums[chunk] + left[:, None] * values[chunk])


def _from(values: Floats) -> Floats:
    """[s] -> the sum over the stages from s on."""
    return np.asarray(values.sum() - exclusive_cumsum(values))
