"""What follows the passes of a step: the gradients' reduction and the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.layout import LEVELS, Layout
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.memory import stage_parameters
from hetcomm.plan.prediction.network import Groups, Network, levels_of
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.profile import Profile


@dataclass(frozen=True, slots=True)
class Synchronization:
    """Seconds of one stage: of the reduction of its gradients and, with partitioned states, the
    gathering of its weights; of the reduction of tied weights; of the optimizer on each replica.
    local: whether the ranks that reduce gradients are on one host."""

    seconds: float
    tied: float
    optimizer: tuple[float, ...]
    local: bool = False


def synchronization(
    model: Model, layout: Layout, profile: Profile, network: Network, devices: Sequence[str],
    runtime: Runtime,
) -> list[Synchronization]:  # fmt: skip
    """What follows the passes on each stage."""
    found = []
    for s, stage in enumerate(layout.stages):
        parts = max(replica.tensor for replica in stage.replicas)
        parameters = stage_parameters(model, layout, s, parts)
        seconds = 0.0
        groups = layout.data_groups(s)
        for wave in waves(groups):
            reduction = Reduction(
                model, network, wave, layout.weights, layout.optimizer_states, layout.codec
            )
            seconds += float(reduction.seconds([parameters])[0])
        if runtime.flat_gradients:
            # To copy to the flat buffer, to scale, and to copy back: each reads and writes once.
            kinds = {devices[rank] for replica in stage.replicas for rank in replica.ranks}
            slowest = min(profile.bandwidth(kind) for kind in kinds)
            seconds += 6 * parameters * model.gradient_bytes / slowest
        share = _share(layout, network, groups[0])
        own = {
            degree: stage_parameters(model, layout, s, degree) / share
            for degree in {replica.tensor for replica in stage.replicas}
        }
        optimizer = tuple(
            max(
                profile.step_seconds(device, replica.tensor, own[replica.tensor])
                for device in {devices[rank] for rank in replica.ranks}
            )
            for replica in stage.replicas
        )
        local = all(len(levels_of(network, group, "host")) == 1 for group in groups)
        found.append(Synchronization(seconds, _tied(model, layout, network, s), optimizer, local))
    return found


def waves(groups: list[list[int]]) -> list[list[list[int]]]:
    """Groups that run at once. A rank in several groups serves them one after another."""
    waves: list[list[list[int]]] = []
    used: list[set[int]] = []
    for group in groups:
        if len(group) < 2:
            continue
        for wave, ranks in zip(waves, used, strict=True):
            if not ranks.intersection(group):
                wave.append(group)
                ranks.update(group)
                break
        else:
            waves.append([group])
            used.append(set(group))
    return waves


class Reduction:
    """The reduction of the gradients in groups that run at once, for any number of parameters.

    With partitioned states each rank of a level gets its share, the levels' shares are reduced
    across, and the ranks of a level gather the weights. weights, states: the levels of weights and
    optimizer states.
    """

    def __init__(
        self, model: Model, network: Network, groups: list[list[int]], weights: str, states: str,
        codec: str,
    ) -> None:  # fmt: skip
        self.model, self.network, self.codec = model, network, codec
        self.whole = states == "rank"
        if self.whole:
            self.inside = _fixed(groups)
            return
        parts = [levels_of(network, group, states) for group in groups]
        self.inside = _fixed(part for each in parts for part in each)
        self.widest = max(map(len, self.inside))
        self.across = _fixed(
            [part[i % len(part)] for part in each] for each in parts for i in range(self.widest)
        )
        self.updated: tuple[Groups, int] | None = None
        if LEVELS.index(weights) < LEVELS.index(states):
            self.updated = _updated(network, weights, self.inside)

    def seconds(self, parameters: Sequence[int]) -> NDArray[np.float64]:
        """Of so many parameters on each rank, for each of several numbers."""
        collectives, codec = self.network.collectives, self.codec
        sizes = [count * self.model.gradient_bytes for count in parameters]
        if self.whole:
            return collectives("all_reduce", self.inside, sizes, codec)
        seconds = collectives("reduce_scatter", self.inside, sizes, codec)
        shares = [size // self.widest for size in sizes]
        seconds = seconds + collectives("all_reduce", self.across, shares, codec)
        if self.updated is not None:
            groups, widest = self.updated
            pieces = [count * self.model.weight_bytes // widest for count in parameters]
            seconds = seconds + collectives("all_gather", groups, pieces)
        return seconds


def _fixed(groups: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, groups))


def _updated(network: Network, weights: str, parts: Groups) -> tuple[Groups, int]:
    """The groups that gather updated weights, and the ranks that share a piece of them.

    Each rank has updated its share of the states' level, and needs its share of the weights' level:
    it gathers the rest from its counterparts in other parts of that level.
    """
    groups, widest = [], 1
    for part in parts:
        pieces = levels_of(network, part, weights)
        most = max(len(piece) for piece in pieces)
        widest = max(widest, most)
        groups += [[piece[i % len(piece)] for piece in pieces] for i in range(most)]
    return _fixed(groups), widest


def _share(layout: Layout, network: Network, group: list[int]) -> int:
    """The ranks that share an optimizer's states."""
    return min(len(part) for part in levels_of(network, group, layout.optimizer_states))


def _tied(model: Model, layout: Layout, network: Network, stage: int) -> float:
    """The table of tied embeddings, whose gradients the first and the last stage add up."""
    last = len(layout.stages) - 1
    if not model.tied or last == 0 or stage not in (0, last):
        return 0.0
    groups = []
    degree = 1
    for a, b in zip(layout.stages[0].replicas, layout.stages[last].replicas, strict=True):
        degree = max(degree, min(a.tensor, b.tensor))
        groups += [[x, y] for x, y in zip(a.ranks, b.ranks, strict=False)]
    size = model.vocabulary * model.hidden // degree * model.gradient_bytes
    return network.collective("all_reduce", groups, size)
