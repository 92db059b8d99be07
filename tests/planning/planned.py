"""A small model, profile and network that the tests of predictions share."""

from hetcomm.plan import (
    Curve,
    Curves,
    Device,
    Layout,
    Model,
    Place,
    Profile,
    Replica,
    Row,
    Stage,
)  # fmt: skip
from hetcomm.plan.prediction.simulate import Timeline

MODEL = Model(blocks=4, hidden=64, heads=4, sequence=32, vocabulary=512, feed_forward=256)
DEVICES = {"fast": Device(1e12, 1e12, 1e9), "slow": Device(1e12, 1e12, 1e9)}
SECONDS = {"embedding": (0.1, 0.1), "block": (1.0, 2.0), "head": (0.5, 1.0)}


def profile(slower: float = 2.0) -> Profile:
    """Of micro-batches of 1, 2 and 4; times are in proportion, over the tensor degree. The device
    "slow" takes `slower` times as long as "fast"."""
    rows = [
        Row(device, kind, size, tensor, f * factor * size / tensor, b * factor * size / tensor)
        for device, factor in (("fast", 1.0), ("slow", slower))
        for kind, (f, b) in SECONDS.items()
        for size in (1, 2, 4)
        for tensor in (1, 2)
    ]
    optimizer = {(device, tensor): 1e-9 for device in DEVICES for tensor in (1, 2)}
    return Profile(MODEL, DEVICES, tuple(rows), optimizer)


def busy(timeline: Timeline, stage: int) -> float:
    """Seconds of a stage's passes and of its work on what came."""
    return sum(span.end - span.start for span in timeline.spans[stage])


def network(ranks: int, devices: list[str] | None = None, per_host: int = 1) -> Curves:
    """1 GB/s between hosts for all flows together, 100 GB/s for each inside."""
    kinds = devices or ["fast"] * ranks
    places = [Place(f"host {rank // per_host}", kinds[rank]) for rank in range(ranks)]
    keys = [("", name) for name in DEVICES]
    between = {(a, b): [Curve(1, 0, 0, 1, 1, least=1)] for a in keys for b in keys}
    inside = {name: [Curve(n, 0, 0, 100 * n, 100 * n, least=1) for n in (1, 2)] for name in DEVICES}
    return Curves(places, between, inside)


def layout(
    cuts: tuple[int, ...] = (3, 3), replicas: int = 1, tensor: int = 1, batch: int = 8,
    micro_batch: int = 1, **rest: object,
) -> Layout:  # fmt: skip
    """Stages with these counts of layers; ranks in the order of stages, replicas, tensor ranks."""
    stages, first, rank = [], 0, 0
    for count in cuts:
        found = []
        for _ in range(replicas):
            found.append(Replica(tuple(range(rank, rank + tensor))))
            rank += tensor
        stages.append(Stage(((first, first + count),), tuple(found)))
        first += count
    return Layout(tuple(stages), batch=batch, micro_batch=micro_batch, **rest)  # type: ignore
