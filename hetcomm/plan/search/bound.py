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
    backward pass to the end of the step. warm_up: forward passes of a stage before its first
    backward pass; None where the schedule has chunks.
    """

    forward: Floats
    backward: Floats
    deferred: Floats
    first: Floats
    last: Floats
    transfers: Floats
    tails: Floats
    micro_batches: int
    warm_up: Sequence[int] | None


def step_bound(pipeline: Pipeline) -> float:
    """Seconds that a step takes at least.

    A stage is busy for micro_batches * (forward + backward). Without chunks, its first backward
    pass also waits for the round trip of the first micro-batch, during which it computes no more
    than its warm-up.
    """
    transfers = np.concatenate((pipeline.transfers, [0.0]))
    way_in = _before(pipeline.first + transfers)
    wait = np.zeros_like(way_in)
    if pipeline.warm_up is not None:
        round_trip = _after(pipeline.first + pipeline.last) + 2 * _from(transfers)
        spare = (np.asarray(pipeline.warm_up) - 1) * pipeline.forward
        wait = np.maximum(round_trip - spare, 0.0)
    busy = pipeline.micro_batches * (pipeline.forward + pipeline.backward)
    own = way_in + wait + busy + pipeline.tails
    way_out = _before(pipeline.last + transfers)
    needed = way_in + wait + busy - pipeline.micro_batches * pipeline.deferred
    through = (needed + way_out)[:, None] + (pipeline.tails - way_out)[None, :]
    return float(max(own.max(), np.where(np.tri(len(own), k=-1) > 0, through, 0.0).max()))


def relaxed_bound(
    block_seconds: Sequence[float],
    transfers: Sequence[float],
    blocks: int,
    micro_batches: int,
    fills: Sequence[float],
    slack: float = 0.0,
) -> float:
    """Seconds that a step takes at least, however equal blocks are divided among stages.

    block_seconds: of a block on each stage, forward and backward. transfers: before the next stage
    begins, and after it ends. fills: the part of a stage's seconds of one micro-batch in which the
    stages after it wait, less `slack` in all.

    Blocks may be divided into fractions. With load x on stage s, and P for the fills and transfers
    before it, P + m x is at most the bound R. The most blocks within R are v R - c, by recursion
    from the last stage.
    """
    v = c = 0.0
    for s in range(len(block_seconds) - 1, -1, -1):
        if s < len(transfers):
            c += v * transfers[s]
        if s == 0:
            c -= v * slack
        gain = 1 / block_seconds[s] - fills[s] * v
        if gain > 0:
            v += gain / micro_batches
    return (blocks + c) / v


def whole_bound(stages: Sequence[tuple[float, float, int]], blocks: int) -> float:
    """Seconds that the slowest stage takes for one micro-batch at least, with whole blocks.

    stages: (seconds besides blocks, seconds of a block, number of such stages). From equal shares
    of time on, stages get blocks one after another, each the stage that then takes least.
    """
    slowest = blocks / sum(count / each for _, each, count in stages)
    held = [max(0, int((slowest - own) / each)) for own, each, _ in stages]
    missing = blocks - sum(n * count for n, (_, _, count) in zip(held, stages, strict=True))
    while missing > 0:
        following = [own + (n + 1) * each for (own, each, _), n in zip(stages, held, strict=True)]
        slowest = max(slowest, min(following))
        index = following.index(min(following))
        held[index] += 1
        missing -= stages[index][2]
    return max(slowest, *(own for own, _, _ in stages))


def _before(values: Floats) -> Floats:
    """[s] -> the sum over the stages before s."""
    return np.concatenate(([0.0], np.cumsum(values)[:-1]))


def _after(values: Floats) -> Floats:
    """[s] -> the sum over the stages after s."""
    return np.asarray(values.sum() - np.cumsum(values))


def _from(values: Floats) -> Floats:
    """[s] -> the sum over the stages from s on."""
    return np.asarray(values.sum() - _before(values))
