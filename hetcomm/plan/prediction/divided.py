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
from hetcomm.plan.prediction.simulate import Costs, Timeline
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
    ends, messages = [], []
    for s in stages:
        sent = _beside(s, len(stages), runs, pieces[s])
        end = max(starts[s], _served(sent))
        ends.append(end + pieces[s].left + synced[s].tied)
        messages.append((sent, (end, pieces[s].left)))
    busy = _nics(pieces, messages)
    hosts = [{*each.hosts[0], *each.hosts[1]} for each in pieces]
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
    stage: int, stages: int, runs: Sequence[tuple[Timeline, Costs]], pieces: Pieces
) -> list[Message]:
    """The sums that run beside the last backward passes of a stage's chunks, in order."""
    if not any(pieces.beside.values()):
        return []
    ready: dict[tuple[int, int], float] = {}
    for timeline, cost in runs:
        last = {span.chunk: span for span in timeline.spans[stage] if span.what == "backward"}
        for chunk, span in last.items():
            own = cost.layers[chunk * stages + stage]
            scale = (span.end - span.start) / (sum(each[2] for each in own) or 1.0)
            left = span.end
            for place, (_, _, backward) in enumerate(own):
                ready[chunk, place] = max(ready.get((chunk, place), 0.0), left)
                left -= backward * scale
    layers = runs[0][1].layers[stage::stages]
    sums = {(chunk, place): pieces.beside[layers[chunk][place][0]] for chunk, place in ready}
    return sorted((ready[key], seconds) for key, seconds in sums.items())


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
        for host, share in each.hosts[0].items():
            carried.setdefault(host, []).extend((t, seconds * share) for t, seconds in beside)
        for host, share in each.hosts[1].items():
            carried.setdefault(host, []).append((left[0], left[1] * share))
    return {host: _served(sorted(sent)) for host, sent in carried.items()}


def _sharing(seconds: Sequence[float], pieces: Sequence[Pieces]) -> list[float]:
    """How much longer new weights take where stages share NICs in equal parts: all start at once,
    so while one is under way, each other one carries as many bytes, or all of its own."""
    found = []
    for own, each in zip(seconds, pieces, strict=True):
        together = own
        for host in each.hosts[2]:
            others = [
                min(own, other) * piece.hosts[2][host]
                for other, piece in zip(seconds, pieces, strict=True)
                if host in piece.hosts[2]
            ]
            together = max(together, sum(others))
        found.append(together / own if own else 1.0)
    return found


def _of_layers(stage: int, stages: int, costs: Costs, by_kind: Mapping[str, float]) -> list[float]:
    """A value of each layer of a stage, in the order of the first forward passes."""
    return [by_kind[kind] for layers in costs.layers[stage::stages] for kind, *_ in layers]


def _late(
    layout: Layout, updates: Sequence[float], layers: Sequence[tuple[str, float, float]]
) -> float:
    """Seconds by which new weights delay the first forward pass of a stage. updates: seconds of
    each layer's; layers: of the first chunk."""
    if not layout.overlap_optimizer:
        return sum(updates)
    computed = accumulate((forward for _, forward, _ in layers), initial=0.0)
    pairs = zip(accumulate(updates), computed, strict=False)
    return max(came - before for came, before in list(pairs)[: len(layers)])
