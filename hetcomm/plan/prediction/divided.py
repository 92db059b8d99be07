"""What follows the passes of a step with hetcomm.partition(): sums, the optimizer, new weights.

A layer's gradients are summed over the gradients' level once its last backward pass is over, one
layer after another, while earlier layers compute. What is left of the sum follows at the
optimizer's step. New weights come back layer by layer, in the order of the next forward pass. With
overlap_optimizer a layer waits for its own alone. Stages sum at the same time, so the NICs of a
host carry the bytes of all its stages. Steps follow each other, so a later stage has time until the
first activation of the next step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hetcomm.plan.layout import Layout
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.prediction.simulate import Costs, LayerSeconds, Timeline
from hetcomm.plan.prediction.synchronize import Pieces, Synchronization

# A sum on the wire: when its gradients are there, and seconds.
Message = tuple[float, float]


@dataclass(frozen=True, slots=True)
class After:
    """Seconds of a stage after its passes: when the last replica has ended, then until all
    gradients are summed, then of each replica's optimizer, and of new weights that delay the next
    step."""

    start: float
    gradients: float
    optimizer: tuple[float, ...]
    updates: tuple[float, ...]


def divided(
    layout: Layout, runtime: Runtime, timelines: Sequence[Timeline], costs: Sequence[Costs],
    synced: Sequence[Synchronization],
) -> list[After]:  # fmt: skip
    """What follows the passes on each stage. synced: with pieces."""
    stages = range(len(layout.stages))
    pieces = [each.pieces for each in synced if each.pieces is not None]
    unlike = {
        id(timeline): (timeline, cost) for timeline, cost in zip(timelines, costs, strict=True)
    }
    runs = list(unlike.values())  # equal replicas share a timeline
    starts = [max(timeline.ends[s] for timeline, _ in runs) for s in stages]
    sums = _beside(len(stages), runs, pieces)
    ends, messages = [], []
    for s, (sent, end) in enumerate(sums):
        end = max(starts[s], end)
        ends.append(end + pieces[s].left + synced[s].tied)
        messages.append((sent, (end, pieces[s].left)))
    busy = _nics(pieces, messages)
    hosts = [{*each.hosts.beside, *each.hosts.left} for each in pieces]
    ends = [max([end, *(busy[h] for h in on)]) for end, on in zip(ends, hosts, strict=True)]
    norm = max(each.norm for each in pieces) if runtime.clips else 0.0
    if runtime.clips:
        ends = [max(ends)] * len(ends)
    own = [_of_layers(s, len(stages), costs[0], each.updates) for s, each in enumerate(pieces)]
    slower = _sharing([sum(each) for each in own], pieces)
    found = []
    for s in stages:
        spare = {
            key: timeline.spans[s][0].start
            - _late(layout, [slower[s] * each for each in own[s]], cost.layers[s])
            for key, (timeline, cost) in unlike.items()
        }
        exposed = [
            max(0.0, seconds - spare[id(timeline)])
            for timeline, seconds in zip(timelines, synced[s].optimizer, strict=True)
        ]
        optimizer = tuple(map(min, synced[s].optimizer, exposed))
        updates = tuple(a - b for a, b in zip(exposed, optimizer, strict=True))
        found.append(After(starts[s], ends[s] + norm - starts[s], optimizer, updates))
    return found


def _beside(
    stages: int, runs: Sequence[tuple[Timeline, Costs]], pieces: Sequence[Pieces]
) -> list[tuple[list[Message], float]]:
    """Of each stage, the sums that run beside its last backward passes, and when all are over.

    A backward pass goes on with the next layer once the sum before the latest one is over, see
    partitioning/reductions.py. So replicas go on together, and the gradient for the stage before
    leaves later.
    """
    last = [
        {(span.chunk, s): span for s, spans in enumerate(timeline.spans) for span in spans
         if span.what == "backward"}
        for timeline, _ in runs
    ]  # fmt: skip
    messages: list[list[Message]] = [[] for _ in range(stages)]
    over = [0.0] * stages  # the latest sum of each stage
    free = [[0.0] * len(runs) for _ in range(stages)]
    later = [0.0] * len(runs)  # when the next virtual stage has ended
    virtual = len(runs[0][1].layers)
    for v in reversed(range(virtual)):
        chunk, s = divmod(v, stages)
        now, scales = [], []
        for (_, cost), spans, end, came in zip(runs, last, free[s], later, strict=True):
            span = spans[chunk, s]
            if v + 1 < virtual and stages > 1 and cost.gradient:
                came += cost.gradient[v]
            now.append(max(span.start, end, came))
            expected = sum(layer.backward for layer in cost.layers[v])
            scales.append((span.end - span.start) / (expected or 1.0))
        for place in reversed(range(len(runs[0][1].layers[v]))):
            for i, (_, cost) in enumerate(runs):
                now[i] += cost.layers[v][place].backward * scales[i]
            seconds = pieces[s].beside.get(runs[0][1].layers[v][place].kind, 0.0)
            if seconds:
                messages[s].append((max(now), seconds))
                before, over[s] = over[s], max(over[s], *now) + seconds
                now = [max(each, before) for each in now]
        free[s] = later = now
    return [(sent, max(end, *on)) for sent, end, on in zip(messages, over, free, strict=True)]


def _served(messages: Sequence[Message]) -> float:
    """When the last of messages is over that travel one after another."""
    end = 0.0
    for ready, seconds in messages:
        end = max(end, ready) + seconds
    return end


def _nics(
    pieces: Sequence[Pieces], messages: Sequence[tuple[list[Message], Message]]
) -> dict[Hashable, float]:
    """When the NICs of each host have carried the sums of all its stages."""
    carried: dict[Hashable, list[Message]] = {}
    for each, (beside, left) in zip(pieces, messages, strict=True):
        for host, share in each.hosts.beside.items():
            carried.setdefault(host, []).extend((t, seconds * share) for t, seconds in beside)
        for host, share in each.hosts.left.items():
            carried.setdefault(host, []).append((left[0], left[1] * share))
    return {host: _served(sorted(sent)) for host, sent in carried.items()}


def _sharing(seconds: Sequence[float], pieces: Sequence[Pieces]) -> list[float]:
    """How much longer new weights take where stages share NICs in equal parts: all start at once,
    so while one is under way, each other one carries as many bytes, or all of its own."""
    found = []
    for own, each in zip(seconds, pieces, strict=True):
        together = own
        for host in each.hosts.updates:
            others = [
                min(own, other) * piece.hosts.updates[host]
                for other, piece in zip(seconds, pieces, strict=True)
                if host in piece.hosts.updates
            ]
            together = max(together, sum(others))
        found.append(together / own if own else 1.0)
    return found


def _of_layers(stage: int, stages: int, costs: Costs, by_kind: Mapping[str, float]) -> list[float]:
    """A value of each layer of a stage, in the order of the first forward passes."""
    return [by_kind[layer.kind] for layers in costs.layers[stage::stages] for layer in layers]


def _late(layout: Layout, updates: Sequence[float], layers: Sequence[LayerSeconds]) -> float:
    """Seconds by which new weights delay the first forward pass of a stage. updates: seconds of
    each layer's; layers: of the first chunk."""
    if not layout.overlap_optimizer:
        return sum(updates)
    computed = accumulate((layer.forward for layer in layers), initial=0.0)
    pairs = zip(accumulate(updates), computed, strict=False)
    return max(came - before for came, before in list(pairs)[: len(layers)])
