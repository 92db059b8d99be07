"""What stages take by range of layers, for the least bound of all divisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hetcomm.plan.search.division import (
    NEVER,
    Chain,
    ChunkLoad,
    ClipLoad,
    Floats,
    Load,
    SumLoad,
    after_last,
    chain,
    empty,
    window,
)
from hetcomm.plan.search.tables import Pipelines, Seconds


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


def _load(pipelines: Sequence[Pipelines], columns: _Columns, stage: int) -> Load:
    """Of several settings of one shape, [settings, first, end]."""
    probes, terms = pipelines[0].probes, pipelines[0].terms
    micro_batches, stages = pipelines[0].micro_batches, len(probes.shape.stages)
    rows = zip(*(each.seconds(stage) for each in pipelines), strict=True)
    seconds = Seconds(*(np.stack(row) for row in rows))
    (firsts, ends), kind_of = terms.alike
    half, warm = columns.half, columns.warm[stage]
    deferred = min(stage + 1, micro_batches) * half * seconds.backward
    # Other schedules than zero_bubble compute no weights' passes after the last backward pass.
    following = np.zeros_like(deferred) if pipelines[0].loose else deferred
    back = seconds.first_backward * (1 - half)
    longest = np.where(columns.unwaiting, NEVER, warm * seconds.forward + back)
    transfer = float(probes.transfers[stage]) if stage + 1 < stages else 0.0
    ahead, back = seconds.first_forward + transfer, back + transfer
    busy = micro_batches * (seconds.forward + seconds.backward) - deferred
    fits = ends - firsts >= columns.chunks
    if not pipelines[0].loose:
        rooms = [each.room(stage) for each in pipelines]
        room, kept = (np.stack([each[which] for each in rooms]) for which in (0, 1))
        fits &= (room >= columns.passes[stage][..., None] * kept).all(axis=1)
    kinds = kind_of[window(terms.problem.model.layers, stages, stage)]
    alpha = pipelines[0].alpha
    slower = 1.0 if alpha == 1 or stage in pipelines[0].fastest else alpha

    def by_range(values: Floats) -> Floats:
        return np.asarray((values if slower == 1 else values * slower)[:, kinds])

    none = empty(len(kinds))
    spare = np.where(columns.unwaiting, 0.0, (micro_batches - 1) % warm * seconds.forward)
    runtime = terms.problem.runtime
    sums = clips = None
    if runtime.partitions and any(probes.joined):
        joined = stage + 1 < stages and probes.joined[stage]
        every = zip(*(each.sums(stage) for each in pipelines), strict=True)
        left, beside, updates, hidden = (by_range(np.stack(each)) for each in every)
        passes = by_range(following)
        sums = SumLoad(left, left + beside, left, passes, updates, hidden, joined)
    if runtime.partitions and runtime.clips:
        latest = None
        if pipelines[0].starts_known:
            moved = float(probes.slower_transfers[stage]) if stage + 1 < stages else 0.0
            latest = by_range(seconds.latest + moved)
        clips = ClipLoad(latest, stage == 0)
    chunks = _chunk_load(pipelines[0], columns.chunks, stage, seconds, busy)
    return Load(
        busy=by_range(np.where(fits, busy, np.inf)) + none,
        alone=by_range(seconds.alone),
        tail=by_range(seconds.tail + following),
        ahead=by_range(ahead) + none,
        back=by_range(back),
        warm=by_range(longest),
        spare=by_range(spare),
        rounds=np.where(columns.unwaiting, 1, (micro_batches - 1) // warm + 1)[:, 0],
        arrivals=(micro_batches * columns.chunks[:, 0] - 1) * transfer,
        renewal=by_range(seconds.renewal),
        steady=by_range(seconds.steady),
        sums=sums,
        clips=clips,
        chunks=chunks and ChunkLoad(
            *(by_range(each) if each.ndim > 1 else each for each in chunks)
        ),
    )  # fmt: skip


def _chunk_load(
    pipelines: Pipelines, chunks: Floats, stage: int, seconds: Seconds, busy: Floats
) -> ChunkLoad | None:
    """By kind of range; zeros of settings without chunks. See bound.py. chunks: [settings, 1]."""
    several = chunks > 1
    if not several.any():
        return None
    probes, micro_batches = pipelines.probes, pipelines.micro_batches
    stages = len(probes.shape.stages)
    last, groups = stage + 1 == stages, micro_batches // stages
    transfer = 0.0 if last else float(probes.transfers[stage])
    wrap = probes.wrap if last else 0.0
    # An activation leaves the last stage for the first one's next chunk, but not from the last.
    moved = (chunks - 1) * (transfer + wrap)
    both = seconds.forward + seconds.backward
    final = seconds.final_forward + seconds.final_backward
    around = both - final + 2 * moved
    passes = (micro_batches - stages) * chunks + stages  # forward, from the last stage's B(0) on
    number = np.minimum(2 * (stages - stage) - 1, passes)
    turns = (micro_batches - stages) * both + stages * final + 2 * passes * transfer
    least = np.minimum(seconds.first_forward, seconds.final_forward)
    least = least + np.minimum(seconds.first_backward, seconds.final_backward)
    # The turns from one group to the next: over half of the stages.
    halves = [stages - 1 - each // 2 for each in (stages, stages - 1)]
    number_of_turns = groups // 2 * (stage >= halves[0]) + (groups - 1) // 2 * (stage >= halves[1])
    turn = seconds.first_backward + seconds.final_forward + 2 * transfer
    grouped = seconds.forward + seconds.first_backward + 2 * transfer + number_of_turns * turn
    grouped = grouped + groups * (seconds.backward - seconds.first_backward) + (1 + groups) * moved

    def where(values: Floats, other: float = 0.0) -> Floats:
        return np.where(several, values, other)

    return ChunkLoad(
        all=where(both + 2 * chunks * transfer),
        around=where(around),
        own=where(busy - stages * (both - final)),
        edges=where((number - 1) / 2 * least),
        turns=where(turns),
        share=where(1 / number, 1.0)[:, 0],
        grouped=where(grouped),
    )


def chain_of(pipelines: Pipelines, below: float) -> Chain:
    """The tables of pipelines with one option, for steps that take less than `below`."""
    columns = _Columns([pipelines])
    loads = [_load([pipelines], columns, s) for s in range(len(pipelines.shape.stages))]
    return chain([_first(load) for load in loads], below)


def _first(values: Any) -> Any:
    """Of the first settings alone: of a Load, or of its parts."""
    if isinstance(values, tuple):
        return type(values)(*map(_first, values))
    return values[0] if isinstance(values, np.ndarray) and values.ndim else values


def all_bounds(pipelines: Sequence[Pipelines], below: float) -> Floats:
    """Chain.bound for each of several settings of one shape, at once; infinite where all steps take
    `below` or more."""
    columns = _Columns(pipelines)
    stages = len(pipelines[0].shape.stages)
    least = after_last(pipelines[0].terms.problem.model.layers - stages + 1)
    for stage in range(stages - 1, -1, -1):
        least = least.before(_load(pipelines, columns, stage), below)
    return least.step[:, 0]
