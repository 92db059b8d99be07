"""The time of a call by leg, from start and end of the steps of every rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from hetcomm import _core


class Step(NamedTuple):
    """A step of a plan with its times on one rank.

    leg: "island", "bridge" or "staging". kind: "send", "recv", "island" or "local". peers: the
    ranks it needs. start: when this rank was ready for it. Times are in ns of one clock.
    """

    leg: str
    kind: str
    peers: list[int]
    start: int
    end: int


class Call(NamedTuple):
    """The steps of one rank in a call."""

    start: int
    end: int
    steps: list[Step]


class _Matched(NamedTuple):
    """A step, the time at which all its ranks were ready, and the last of these ranks."""

    step: Step
    met: int
    last: int | None


def legs_of(calls: Sequence[Call], rank: int, one_clock: bool = True) -> dict[str, float]:
    """Seconds of one rank in one call.

    "total"; by leg, the time with a step under way and all its ranks ready; "for 3", the time
    without such a step, waiting for rank 3; "between", the time without any step. Only legs may
    overlap. Ranks without a common clock see no waits.
    """
    mine = calls[rank]
    seen = _matched(calls, rank) if one_clock else [_Matched(s, s.start, None) for s in mine.steps]
    moments = {mine.start, mine.end}
    moments |= {t for each in seen for t in (each.step.start, each.met, each.step.end)}
    inside = sorted(t for t in moments if mine.start <= t <= mine.end)
    found: dict[str, int] = {"total": mine.end - mine.start}
    for start, end in pairwise(inside):
        at_work = {s.step.leg for s in seen if s.met <= start and s.step.end >= end}
        if not at_work:
            at_work = {_waited_for(seen, start, end)}
        for name in at_work:
            found[name] = found.get(name, 0) + end - start
    return {name: time * 1e-9 for name, time in found.items()}


def _waited_for(seen: Iterable[_Matched], start: int, end: int) -> str:
    """The leg of a wait. Of several ranks awaited for all that time, the first to arrive counts."""
    held_up = [each for each in seen if each.step.start <= start and each.met >= end]
    if not held_up:
        return "between"
    return f"for {min(held_up, key=lambda each: each.met).last}"


def _matched(calls: Sequence[Call], rank: int) -> list[_Matched]:
    """Matches the n-th send to a rank with its n-th recv from here, and the n-th island step with
    that of each member."""
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
            # A message sent before its receive was posted has not waited.
            if other is not None and other.start < step.end:
                started.append((other.start, peer))
        met, last = max(started)
        seen.append(_Matched(step, met, last if last != rank else None))
    return seen


def measured(traces: Sequence[_core.Trace], rank: int, topology: _core.Topology) -> Call:
    """The call that these operations made up."""
    steps = []
    for trace in traces:
        for span in trace.spans:
            leg = _leg(topology, rank, span.kind, span.peers, span.staging)
            start, end = trace.submitted + span.start, trace.submitted + span.end
            steps.append(Step(leg, _kind(span.kind), span.peers, start, end))
    start = min(trace.submitted for trace in traces)
    return Call(start, max(trace.submitted + trace.ended for trace in traces), steps)


def predicted(plans: Sequence[_core.Plan], topology: _core.Topology) -> list[Call]:
    """The calls of all ranks by the cost model. All begin at once."""
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
    """Messages, copies and reductions within an island belong to the leg "island"."""
    if kind in ("send", "recv") and topology.island_of(peers[0]) != topology.island_of(rank):
        return "bridge"
    return "staging" if staging else "island"
