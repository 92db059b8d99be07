"""A pipeline's step as discrete events: passes of stages, and transfers between them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hetcomm.plan.prediction.schedules import Pass
from hetcomm.plan.refuse import refuse


class Span(NamedTuple):
    """Seconds from start to end on a stage. what: of a Pass, or "receive" for work on what came."""

    what: str
    micro_batch: int
    chunk: int
    start: float
    end: float


class LayerSeconds(NamedTuple):
    """The parts of a layer in a forward and a backward pass. kind: of the layer."""

    kind: str
    forward: float
    backward: float


@dataclass(frozen=True)
class Costs:
    """Seconds of one micro-batch in a pipeline of S stages with C chunks each.

    A virtual stage v = chunk * S + stage. forward, backward, weights: of each v. activation and
    gradient: of the transfer between v and v + 1. receive: work of v before a forward pass on what
    came from v - 1; receive_gradient: of v before a backward pass on what came from v + 1.
    layers: of each v, in the order of the forward pass.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    activation: Sequence[float] = ()
    gradient: Sequence[float] = ()
    receive: Sequence[float] = ()
    receive_gradient: Sequence[float] = ()
    weights: Sequence[float] = ()
    layers: Sequence[Sequence[LayerSeconds]] = ()


@dataclass
class Timeline:
    """What each stage does when, in one step.

    spans: of each stage. waits: seconds of each stage by cause. Of a stage with nothing to do yet
    the cause is what the next pass lacks; "send": the transfer of its result alone remains.
    """

    spans: list[list[Span]]
    waits: list[dict[str, float]] = field(default_factory=list)

    @property
    def ends(self) -> list[float]:
        """Seconds after which each stage is done."""
        return [stage[-1].end if stage else 0.0 for stage in self.spans]


class _Transfer(NamedTuple):
    what: str  # "activation" or "gradient"
    micro_batch: int
    virtual: int  # of the sender's smaller side: between virtual and virtual + 1


def simulate(orders: Sequence[Sequence[Pass]], costs: Costs, blocking: bool = False) -> Timeline:
    """Replays the passes of each stage.

    blocking: between two passes a stage sends the first one's result and receives the second one's
    input. Each transfer needs both ends, a stage does one transfer at a time, and the next pass
    waits for both. If they are with unlike peers, the stage sends before it receives.
    Not blocking: transfers run beside passes; a stage sends one at a time to each peer.

    Raises hetcomm.InvalidArgumentError for an order that can never be carried out.
    """
    return _Replay(orders, costs, blocking).run()


class _Replay:
    def __init__(self, orders: Sequence[Sequence[Pass]], costs: Costs, blocking: bool) -> None:
        self.orders, self.costs, self.blocking = orders, costs, blocking
        self.stages = len(orders)
        self.last = len(costs.forward) - 1
        if len(costs.forward) % self.stages or len(costs.backward) != len(costs.forward):
            refuse("costs", f"a multiple of {self.stages} stages", len(costs.forward), "correct it")
        self.timeline = Timeline([[] for _ in orders], [{} for _ in orders])
        self.position = [0] * self.stages
        self.free = [0.0] * self.stages  # when the last pass of a stage ended
        self.ready = [0.0] * self.stages  # when the last transfer before its next pass ended
        self.cause = [""] * self.stages
        self.open = [0] * self.stages  # transfers before its next pass
        self.deferred: list[_Transfer | None] = [None] * self.stages  # to receive after a send
        self.posted: dict[_Transfer, float] = {}
        self.arrived: dict[_Transfer, float] = {}
        self.link: dict[object, float] = {}
        self.heap: list[tuple[float, int, _Transfer]] = []

    def run(self) -> Timeline:
        for stage in range(self.stages):
            self._gap(stage, None)
        while self.heap:
            ready, _, transfer = heapq.heappop(self.heap)
            self._carry(ready, transfer)
        for stage, passes in enumerate(self.orders):
            if self.position[stage] < len(passes):
                stuck = passes[self.position[stage]]
                remedy = "choose another schedule, or transfers that do not block"
                refuse(f"the order of stage {stage}", "passes whose input comes", stuck, remedy)
        return self.timeline

    def _input(self, stage: int, each: Pass) -> _Transfer | None:
        virtual = each.chunk * self.stages + stage
        if each.what == "forward" and virtual > 0:
            return _Transfer("activation", each.micro_batch, virtual - 1)
        if each.what == "backward" and virtual < self.last:
            return _Transfer("gradient", each.micro_batch, virtual)
        return None

    def _output(self, stage: int, each: Pass) -> _Transfer | None:
        virtual = each.chunk * self.stages + stage
        if each.what == "forward" and virtual < self.last:
            return _Transfer("activation", each.micro_batch, virtual)
        if each.what == "backward" and virtual > 0:
            return _Transfer("gradient", each.micro_batch, virtual - 1)
        return None

    def _ends(self, transfer: _Transfer) -> tuple[int, int]:
        low, high = transfer.virtual % self.stages, (transfer.virtual + 1) % self.stages
        return (low, high) if transfer.what == "activation" else (high, low)

    def _gap(self, stage: int, done: Pass | None) -> None:
        """What stands between the pass done and the next one; starts the next if nothing does."""
        while True:
            passes, at = self.orders[stage], self.position[stage]
            now = self.ready[stage] = self.free[stage]
            if done is not None and (sent := self._output(stage, done)) is not None:
                if self.blocking:
                    self.open[stage] += 1
                    self._post(sent, now)
                else:
                    self._push(now, sent)
            if at == len(passes):
                return
            wanted = self._input(stage, passes[at])
            if wanted is not None:
                if self.blocking:
                    self.open[stage] += 1
                    if done is not None and done.what == passes[at].what and self.open[stage] > 1:
                        self.deferred[stage] = wanted
                    else:
                        self._post(wanted, now)
                elif wanted in self.arrived:
                    self._arrive(stage, self.arrived.pop(wanted), wanted)
                else:
                    self.open[stage] = 1
                    self.arrived[wanted] = -1.0  # awaited
            if self.open[stage]:
                return
            done = self._start(stage)

    def _post(self, transfer: _Transfer, now: float) -> None:
        other = self.posted.pop(transfer, None)
        if other is None:
            self.posted[transfer] = now
        else:
            self._push(max(now, other), transfer)

    def _push(self, ready: float, transfer: _Transfer) -> None:
        heapq.heappush(self.heap, (ready, transfer.micro_batch, transfer))

    def _carry(self, ready: float, transfer: _Transfer) -> None:
        sender, receiver = self._ends(transfer)
        table = self.costs.activation if transfer.what == "activation" else self.costs.gradient
        seconds = table[transfer.virtual] if table and sender != receiver else 0.0
        if self.blocking:
            links: tuple[object, ...] = (sender, receiver)
        else:
            links = ((sender, "out", receiver), (receiver, "in", sender))
        start = max(ready, *(self.link.get(link, 0.0) for link in links))
        end = start + seconds
        for link in links:
            self.link[link] = end
        if self.blocking:
            self._arrive(sender, end, None)
            self._complete(sender)
            self._arrive(receiver, end, transfer)
            self._complete(receiver)
        elif self.arrived.pop(transfer, None) is None:
            self.arrived[transfer] = end
        else:
            self._arrive(receiver, end, transfer)
            self._complete(receiver)

    def _arrive(self, stage: int, end: float, received: _Transfer | None) -> None:
        if end > self.ready[stage]:
            self.ready[stage] = end
            self.cause[stage] = "send" if received is None else received.what

    def _complete(self, stage: int) -> None:
        self.open[stage] -= 1
        if (wanted := self.deferred[stage]) is not None:
            self.deferred[stage] = None
            self._post(wanted, self.ready[stage])
        if not self.open[stage]:
            if self.position[stage] < len(self.orders[stage]):
                self._gap(stage, self._start(stage))
            else:
                self._wait(stage)

    def _wait(self, stage: int) -> None:
        if (waited := self.ready[stage] - self.free[stage]) > 0:
            waits = self.timeline.waits[stage]
            waits[self.cause[stage]] = waits.get(self.cause[stage], 0.0) + waited

    def _start(self, stage: int) -> Pass:
        each = self.orders[stage][self.position[stage]]
        self.position[stage] += 1
        virtual = each.chunk * self.stages + stage
        costs, spans = self.costs, self.timeline.spans[stage]
        self._wait(stage)
        now = self.ready[stage]
        if self._input(stage, each) is not None:
            work = costs.receive if each.what == "forward" else costs.receive_gradient
            if work and work[virtual]:
                spans.append(
                    Span("receive", each.micro_batch, each.chunk, now, now + work[virtual])
                )
                now += work[virtual]
        table = {"forward": costs.forward, "backward": costs.backward, "weights": costs.weights}
        end = now + table[each.what][virtual]
        spans.append(Span(each.what, each.micro_batch, each.chunk, now, end))
        self.free[stage] = end
        return each
