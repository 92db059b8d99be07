"""The prediction of a training step: seconds, memory, and where the time goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hetcomm.plan.layout import Layout
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.costs import replica_costs
from hetcomm.plan.prediction.divided import After, divided
from hetcomm.plan.prediction.memory import Memory, memory
from hetcomm.plan.prediction.network import Network
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.prediction.schedules import order
from hetcomm.plan.prediction.sharing import Pipeline, simulate_shared
from hetcomm.plan.prediction.simulate import Costs, Timeline, simulate
from hetcomm.plan.prediction.synchronize import Synchronization, synchronization
from hetcomm.plan.profile import Profile
from hetcomm.plan.refuse import refuse


@dataclass
class Prediction:
    """What a step of a layout takes.

    seconds: from a step's begin to the next one's. tflops: of the model's own operations per second
    and device, in 10^12; a second forward pass of recompute does not count. memory: by rank. over:
    ranks that need more memory than their device has. timelines: of each replica; equal replicas
    share one. error: the largest relative error that the profile states for a layer's times.
    parts: by (stage, replica), seconds by cause: forward, backward, weights (zero bubble's passes
    for weights), receive (a processor's work on what came), waiting, barrier (for other replicas),
    gradients, optimizer, updates (new weights that delay the next step), end (for other stages).
    They add up to `seconds`.
    """

    seconds: float
    tflops: float
    memory: dict[int, Memory]
    over: list[int]
    timelines: list[Timeline]
    parts: dict[tuple[int, int], dict[str, float]]
    error: float
    layout: Layout = field(repr=False)

    @property
    def most_memory(self) -> float:
        """Bytes of the rank that needs most."""
        return max(each.total for each in self.memory.values())

    def waits(self, stage: int, replica: int = 0) -> dict[str, float]:
        """Seconds that a stage waits, by what it waits for: "activation", "gradient", or "send" for
        the transfer of its own result. A key without seconds is absent."""
        return dict(self.timelines[replica].waits[stage])

    def trace(self) -> str:
        """The timelines as JSON of Chrome's trace viewer: a process for each replica, a thread for
        each stage."""
        events: list[dict[str, object]] = []
        for r, timeline in enumerate(self.timelines):
            for s, spans in enumerate(timeline.spans):
                for span in spans:
                    events.append(
                        {
                            "name": f"{span.what} {span.micro_batch}",
                            "cat": span.what,
                            "ph": "X",
                            "ts": span.start * 1e6,
                            "dur": (span.end - span.start) * 1e6,
                            "pid": r,
                            "tid": s,
                            "args": {"chunk": span.chunk},
                        }
                    )
                start = spans[-1].end if spans else 0.0
                for what in ("barrier", "gradients", "optimizer", "updates"):
                    seconds = self.parts[s, r][what]
                    if seconds > 0:
                        events.append(
                            {"name": what, "cat": what, "ph": "X", "ts": start * 1e6,
                             "dur": seconds * 1e6, "pid": r, "tid": s}
                        )  # fmt: skip
                        start += seconds
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def save_trace(self, path: str | Path) -> None:
        """Writes trace() to a file."""
        Path(path).write_text(self.trace(), encoding="utf-8")


def predict(
    model: Model,
    layout: Layout,
    profile: Profile,
    network: Network,
    devices: Sequence[str],
    runtime: Runtime | None = None,
) -> Prediction:
    """Predicts a step. devices: the kind of device of each rank, a name that the profile knows.

    Raises hetcomm.InvalidArgumentError where layout, model, profile, network or devices do not fit.
    """
    runtime = Runtime() if runtime is None else runtime
    if layout.layers != model.layers:
        refuse("layout", f"the model's {model.layers} layers", layout.layers, "change the chunks")
    if (most := max(layout.ranks)) >= len(devices):
        refuse("devices", f"a kind for each rank up to {most}", len(devices), "name them all")
    if most >= network.ranks:
        expected, remedy = f"ranks up to {most}", "describe the whole cluster"
        refuse("network", expected, f"{network.ranks} ranks", remedy)
    costs, error = replica_costs(model, layout, profile, network, devices, runtime)
    timelines = _timelines(layout, profile, costs, runtime)
    synced = synchronization(model, layout, profile, network, devices, runtime)
    if runtime.partitions:
        ends = divided(layout, runtime, timelines, costs, synced)
    else:
        ends = _whole(layout, runtime, timelines, synced)
    seconds, parts = _step(timelines, ends)
    operations = model.step_operations(layout.batch)
    held = memory(model, layout, network, runtime, devices, profile)
    over = [
        rank for rank, each in held.items() if each.total > profile.devices[devices[rank]].memory
    ]
    return Prediction(
        seconds=seconds,
        tflops=operations / seconds / len(layout.ranks) * 1e-12,
        memory=held,
        over=over,
        timelines=timelines,
        parts=parts,
        error=error,
        layout=layout,
    )


def _timelines(
    layout: Layout, profile: Profile, costs: Sequence[Costs], runtime: Runtime
) -> list[Timeline]:
    stages, chunks = len(layout.stages), len(layout.stages[0].chunks)
    runs = list(zip(costs, layout.micro_batches, strict=True))
    if profile.processors is not None and profile.processors < len(layout.ranks):
        if runtime.blocking:
            refuse("runtime.blocking", "transfers beside passes for ranks that share processors",
                   "blocking ones", "choose another runtime")  # fmt: skip
        pipelines = [
            Pipeline(
                order(layout.schedule, stages, count, chunks),
                each,
                [len(stage.replicas[r].ranks) for stage in layout.stages],
            )
            for r, (each, count) in enumerate(runs)
        ]
        return simulate_shared(pipelines, profile.processors)
    known: dict[tuple[Costs, int], Timeline] = {}
    for each, count in runs:
        if (each, count) not in known:
            orders = order(layout.schedule, stages, count, chunks)
            known[each, count] = simulate(orders, each, runtime.blocking)
    return [known[run] for run in runs]


def _step(
    timelines: list[Timeline], after: list[After]
) -> tuple[float, dict[tuple[int, int], dict[str, float]]]:
    """Seconds of the step, and their parts by (stage, replica)."""
    parts: dict[tuple[int, int], dict[str, float]] = {}
    for s, stage in enumerate(after):
        computed: dict[int, dict[str, float]] = {}
        for r, timeline in enumerate(timelines):  # equal replicas share one
            if id(timeline) not in computed:
                of_timeline = dict.fromkeys(("forward", "backward", "weights", "receive"), 0.0)
                for span in timeline.spans[s]:
                    of_timeline[span.what] += span.end - span.start
                computed[id(timeline)] = of_timeline
            found = dict(computed[id(timeline)])
            found["waiting"] = timeline.ends[s] - sum(found.values())
            found["barrier"] = stage.start - timeline.ends[s]
            found["gradients"] = stage.gradients
            found["optimizer"] = stage.optimizer[r]
            found["updates"] = stage.updates[r]
            parts[s, r] = found
    finish = max(sum(found.values()) for found in parts.values())
    for found in parts.values():
        found["end"] = finish - sum(found.values())
    return finish, parts


def _whole(
    layout: Layout, runtime: Runtime, timelines: list[Timeline], synced: list[Synchronization]
) -> list[After]:
    """The reduction of a stage in one piece, with the gathering of new weights."""
    last = max(max(timeline.ends) for timeline in timelines)
    found = []
    for s, sync in enumerate(synced):
        start = last if runtime.barrier else max(timeline.ends[s] for timeline in timelines)
        exposed = sync.seconds
        if sync.hides and (runtime.overlap_gradients or layout.overlap_optimizer):
            # A layer's gradients leave once its last backward pass is over: those of the stage's
            # first layer after all computation, the others during the backward pass.
            shortest = min(_last_backward(timeline, s) for timeline in timelines)
            layers = layout.stages[s].layers
            exposed = max(sync.seconds / layers, sync.seconds - shortest * (layers - 1) / layers)
        none = (0.0,) * layout.replicas
        found.append(After(start, exposed + sync.tied, sync.optimizer, none))
    return found


def _last_backward(timeline: Timeline, stage: int) -> float:
    spans = [span for span in timeline.spans[stage] if span.what in ("backward", "weights")]
    return spans[-1].end - spans[-1].start
