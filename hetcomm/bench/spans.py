"""Where the time of a call goes: from when the steps of every rank started and ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from hetcomm import _core


class Step(NamedTuple):
    """leg: "island", "bridge" or "staging"; kind: "send", "recv", "island" or "local"; peers: the
    ranks that it needs; start: when this rank was ready for it; all times in ns of one clock."""

    leg: str
    kind: str
    peers: list[int]
    start: int
    end: int


class Call(NamedTuple):
    """What one rank did in a call, from start to end."""

    start: int
    end: int
    steps: list[Step]


class _Seen(NamedTuple):
    """A step with when the ranks that it needs were ready as well, and who of them was last."""

    step: Step
    met: int
    last: int | None


def legs_of(calls: Sequence[Call], rank: int, one_clock: bool = True) -> dict[str, float]:
    """Seconds of a rank, of what all did in one call.

    "total"; by leg, how long it had a step under way for which all were ready; "for 3", how long it
    had none of those and waited for rank 3; "between", how long it had none at all. So legs may
    overlap, and nothing else does. Ranks whose clocks differ see no waits.
    """
    mine = calls[rank]
    seen = _meetings(calls, rank) if one_clock else [_Seen(s, s.start, None) for s in mine.steps]
    moments = {mine.start, mine.end}
    moments |= {t for each in seen for t in (each.step.start, each.met, each.step.end)}
    inside = sorted(t for t in moments if mine.start <= t <= mine.end)
    found: dict[str, int] = {"total": mine.end - mine.start}
    for start, end in pairwise(inside):
        at_work = {s.step.leg for s in seen if s.met <= start and s.step.end >= end}
        if not at_work:
            at_work = {_awaited(seen, start, end)}
        for name in at_work:
            found[name] = found.get(name, 0) + end - start
    return {name: time * 1e-9 for name, time in found.items()}


def _awaited(seen: Iterable[_Seen], start: int, end: int) -> str:
    """The one that came next, of those waited for all that time."""
    held_up = [each for each in seen if each.step.start <= start and each.met >= end]
    if not held_up:
        return "between"
    return f"for {min(held_up, key=lambda each: each.met).last}"


def _meetings(calls: Sequence[Call], rank: int) -> list[_Seen]:
    """The n-th send to a rank meets its n-th recv from here, the n-th step of an island that of its
    members."""
    back = {"send": "recv", "recv": "send"}
    others: dict[tuple[str, int], list[Step]] = {}
    for peer, call in enumerate(calls):
        for step in reversed(call.steps):
            if rank in step.peers:
                others.setdefault((step.kind, peer), []).append(step)
    seen = []
    for step in calls[rank].steps:
        started = [(step.start, rank)]
        for peer in step.peers:
            theirs = others.get((back.get(step.kind, step.kind), peer), [])
            other = theirs.pop() if theirs else None
            # What was over before its receiver came has waited for nobody.
            if other is not None and other.start < step.end:
                started.append((other.start, peer))
        met, last = max(started)
        seen.append(_Seen(step, met, last if last != rank else None))
    return seen


def measured(traces: Sequence[_core.Trace], rank: int, topology: _core.Topology) -> Call:
    """Of the operations that made up a call."""
    steps = []
    for trace in traces:
        for span in trace.spans:
            leg = _leg(topology, rank, span.kind, span.peers, span.staging)
            start, end = trace.submitted + span.start, trace.submitted + span.end
            steps.append(Step(leg, _kind(span.kind), span.peers, start, end))
    start = min(trace.submitted for trace in traces)
    return Call(start, max(trace.submitted + trace.ended for trace in traces), steps)


def predicted(plans: Sequence[_core.Plan], topology: _core.Topology) -> list[Call]:
    """Of each rank, by the cost model; all begin at once."""
    parameters = _core.CostParameters(_core.Profile.setting())
    calls = []
    for plan, spans in zip(plans, _core.timeline(topology, plans, parameters), strict=True):
        steps, island_free = [], 0
        for step, (_, end) in zip(plan.steps, spans, strict=True):
            kind, peers, ready = step.kind.name, [], [spans[index][1] for index in step.after]
            if step.peer >= 0:
                peers = [step.peer]
            elif kind.startswith("island"):
                peers = [member for member in plan.members if member != plan.rank]
                ready.append(island_free)
                island_free = end
            spaces = [each.space for each in (*step.sources, step.target)]
            staging = not peers and len({each == _core.Space.staging for each in spaces}) == 2
            leg = _leg(topology, plan.rank, kind, peers, staging)
            steps.append(Step(leg, _kind(kind), peers, max(ready, default=0), end))
        calls.append(Call(0, max((step.end for step in steps), default=0), steps))
    return calls


def _kind(kind: str) -> str:
    if kind in ("send", "recv"):
        return kind
    return "island" if kind.startswith("island") else "local"


def _leg(
    topology: _core.Topology, rank: int, kind: str, peers: Sequence[int], staging: bool
) -> str:
    """Messages within an island are part of it, as are copies and reductions."""
    if kind in ("send", "recv") and topology.island_of(peers[0]) != topology.island_of(rank):
        return "bridge"
    return "staging" if staging else "island"
