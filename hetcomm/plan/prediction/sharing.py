"""Pipelines whose ranks share processors: each pass slows while more ranks compute than there are.

Ranks that compute at once have equal shares of the processors, as under a fair scheduler. Transfers
need no processor.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from hetcomm.plan.prediction.schedules import Pass
from hetcomm.plan.prediction.simulate import Costs, Span, Timeline
from hetcomm.plan.refuse import refuse

NOTHING = 1e-12  # seconds of work that rounding leaves


@dataclass(frozen=True)
class Pipeline:
    """A replica. orders: the passes of each stage. ranks: of each stage."""

    orders: Sequence[Sequence[Pass]]
    costs: Costs
    ranks: Sequence[int]


def simulate_shared(pipelines: Sequence[Pipeline], processors: float) -> list[Timeline]:
    """The timelines of all replicas, whose ranks share so many processors.

    Costs are those of ranks with a processor each. Transfers run beside passes, as in simulate().
    Raises hetcomm.InvalidArgumentError for an order that can never be carried out.
    """
    return _Replay(pipelines, processors).run()


@dataclass
class _Work:
    """What a stage computes now. left: seconds with a processor of its own."""

    what: str
    each: Pass
    left: float
    start: float


class _Replay:
    def __init__(self, pipelines: Sequence[Pipeline], processors: float) -> None:
        self.pipelines, self.processors = pipelines, processors
        self.timelines = [
            Timeline([[] for _ in p.orders], [{} for _ in p.orders]) for p in pipelines
        ]
        self.now = 0.0
        self.works: dict[tuple[int, int], _Work] = {}  # by replica and stage
        self.position = {(r, s): 0 for r, p in enumerate(pipelines) for s in range(len(p.orders))}
        self.idle_since = dict.fromkeys(self.position, 0.0)
        self.came: set[tuple[int, str, int, int]] = set()
        self.link: dict[tuple[int, int, int], float] = {}
        self.heap: list[tuple[float, int, str, int, int]] = []

    def run(self) -> list[Timeline]:
        for place in self.position:
            self._start(place)
        while self.works or self.heap:
            ranks = sum(self.pipelines[r].ranks[s] for r, s in self.works)
            rate = min(1.0, self.processors / ranks) if ranks else 1.0
            least = min((work.left for work in self.works.values()), default=float("inf"))
            until = self.now + least / rate
            if self.heap:
                until = min(until, self.heap[0][0])
            for work in self.works.values():
                work.left -= (until - self.now) * rate
            self.now = until
            while self.heap and self.heap[0][0] <= self.now:
                _, r, what, micro_batch, virtual = heapq.heappop(self.heap)
                self.came.add((r, what, micro_batch, virtual))
                self._start((r, virtual % len(self.pipelines[r].orders)))
            for place in [p for p, work in self.works.items() if work.left <= NOTHING]:
                self._finish(place)
        for (r, s), at in self.position.items():
            if at < len(self.pipelines[r].orders[s]):
                refuse(
                    f"the order of stage {s}",
                    "passes whose input comes",
                    self.pipelines[r].orders[s][at],
                    "choose another schedule",
                )
        return self.timelines

    def _start(self, place: tuple[int, int]) -> None:
        """Starts the next pass of a stage, if the stage is free and the input is there."""
        r, s = place
        pipeline, at = self.pipelines[r], self.position[place]
        if place in self.works or at == len(pipeline.orders[s]):
            return
        each = pipeline.orders[s][at]
        virtual = each.chunk * len(pipeline.orders) + s
        last = len(pipeline.costs.forward) - 1
        comes = (each.what == "forward" and virtual > 0) or (
            each.what == "backward" and virtual < last
        )
        if comes and (r, each.what, each.micro_batch, virtual) not in self.came:
            return
        if (waited := self.now - self.idle_since[place]) > 0:
            waits = self.timelines[r].waits[s]
            cause = "activation" if each.what == "forward" else "gradient"
            waits[cause] = waits.get(cause, 0.0) + waited
        costs = pipeline.costs
        receive = costs.receive if each.what == "forward" else costs.receive_gradient
        if comes and receive and receive[virtual]:
            self.works[place] = _Work("receive", each, receive[virtual], self.now)
        else:
            self._compute(place, each, virtual)

    def _compute(self, place: tuple[int, int], each: Pass, virtual: int) -> None:
        costs = self.pipelines[place[0]].costs
        table = {"forward": costs.forward, "backward": costs.backward, "weights": costs.weights}
        self.works[place] = _Work(each.what, each, table[each.what][virtual], self.now)

    def _finish(self, place: tuple[int, int]) -> None:
        r, s = place
        pipeline, work = self.pipelines[r], self.works.pop(place)
        each, stages = work.each, len(pipeline.orders)
        virtual = each.chunk * stages + s
        span = Span(work.what, each.micro_batch, each.chunk, work.start, self.now)
        self.timelines[r].spans[s].append(span)
        if work.what == "receive":
            self._compute(place, each, virtual)
            return
        self.position[place] += 1
        self.idle_since[place] = self.now
        costs, last = pipeline.costs, len(pipeline.costs.forward) - 1
        if each.what == "forward" and virtual < last:
            self._send(r, "forward", each, virtual, virtual + 1, costs.activation)
        if each.what == "backward" and virtual > 0:
            self._send(r, "backward", each, virtual, virtual - 1, costs.gradient)
        self._start(place)

    def _send(
        self, r: int, what: str, each: Pass, source: int, target: int, table: Sequence[float]
    ) -> None:
        """A stage sends one activation or gradient at a time to each peer."""
        stages = len(self.pipelines[r].orders)
        seconds = 0.0
        if table and source % stages != target % stages:
            seconds = table[min(source, target)]
        link = (r, source % stages, target % stages)
        end = max(self.now, self.link.get(link, 0.0)) + seconds
        self.link[link] = end
        heapq.heappush(self.heap, (end, r, what, each.micro_batch, target))
