"""What follows the passes of a step: the gradients' reduction and the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.layout import LEVELS, Layout, Replica, groups_of
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.memory import stage_parameters
from hetcomm.plan.prediction.network import Groups, Network, levels_of
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.profile import Profile


@dataclass(frozen=True, slots=True)
class Synchronization:
    """Seconds of one stage: of the reduction of its gradients and, with partitioned states, the
    gathering of its weights; of the reduction of tied weights; of the optimizer on each replica.
    hides: whether passes hide the reduction. Ranks of one host reduce by copies, for which passes
    leave no processor where ranks share processors. pieces: see Pieces; None unless the runtime
    partitions."""

    seconds: float
    tied: float
    optimizer: tuple[float, ...]
    hides: bool = True
    pieces: Pieces | None = None


class PieceHosts(NamedTuple):
    """By piece, the hosts whose NICs it crosses.

    Each host comes with the share of the piece's time in which its NICs are busy.
    """

    beside: Mapping[object, float]
    left: Mapping[object, float]
    updates: Mapping[object, float]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The parts of Synchronization.seconds that overlap apart.

    beside: by kind of layer, of the sum of one layer's gradients while earlier layers compute.
    left: of what is left of all layers' sums. updates: by kind of layer, of one layer's new
    weights. norm: of the messages for the gradients' norm.
    """

    beside: Mapping[str, float]
    left: float
    updates: Mapping[str, float]
    hosts: PieceHosts
    norm: float


def synchronization(
    model: Model, layout: Layout, profile: Profile, network: Network, devices: Sequence[str],
    runtime: Runtime,
) -> list[Synchronization]:  # fmt: skip
    """What follows the passes on each stage."""
    found = []
    crowding = profile.crowding(len(layout.ranks))
    for s, stage in enumerate(layout.stages):
        parts = max(replica.tensor for replica in stage.replicas)
        parameters = stage_parameters(model, layout, s, parts)
        groups = groups_of(stage.replicas)
        levels = (layout.weights, layout.gradients, layout.optimizer_states)
        reductions = reductions_of(model, network, stage.replicas, *levels, layout.codec)
        seconds = sum(float(each.seconds([parameters])[0]) for each in reductions)
        if runtime.flat_gradients:
            # To copy to the flat buffer, to scale, and to copy back: each reads and writes once.
            kinds = {devices[rank] for replica in stage.replicas for rank in replica.ranks}
            slowest = min(profile.bandwidth(kind) for kind in kinds)
            seconds += 6 * parameters * model.gradient_bytes / slowest
        local = all(len(levels_of(network, group, "host")) == 1 for group in groups)
        slower = crowding if local else 1.0
        share = _share(layout, network, groups[0])
        own = {
            degree: stage_parameters(model, layout, s, degree) / share
            for degree in {replica.tensor for replica in stage.replicas}
        }
        unlike = [
            (replica.tensor, frozenset(devices[rank] for rank in replica.ranks))
            for replica in stage.replicas
        ]
        steps = {
            (tensor, kinds): crowding
            * max(profile.step_seconds(device, tensor, own[tensor]) for device in kinds)
            for tensor, kinds in dict.fromkeys(unlike)
        }
        optimizer = tuple(steps[each] for each in unlike)
        pieces = (
            _pieces(model, layout, network, s, reductions, slower) if runtime.partitions else None
        )
        tied = _tied(model, layout, network, s)
        found.append(Synchronization(seconds * slower, tied, optimizer, slower == 1, pieces))
    return found


def _pieces(
    model: Model, layout: Layout, network: Network, stage: int, reductions: tuple[Reduction, ...],
    slower: float,
) -> Pieces:  # fmt: skip
    """Zero bubble's backward passes for weights do not reduce, so all sums are left. slower: how
    many times as long all pieces take, see Synchronization.hides."""
    tensor = max(replica.tensor for replica in layout.stages[stage].replicas)
    kinds = dict.fromkeys(
        kind for first, end in layout.stages[stage].chunks for kind in model.count(first, end)
    )
    sizes = [model.parameters(kind, tensor) for kind in kinds]
    total = [stage_parameters(model, layout, stage, tensor)]
    beside, updates, left = np.zeros(len(sizes)), np.zeros(len(sizes)), 0.0
    hides = layout.schedule != "zero_bubble" and slower == 1
    for each in reductions:
        if not hides:
            left += float(each.beside(total)[0])
        else:
            beside = beside + each.beside(sizes)
        left += float(each.left(total)[0])
        updates = updates + each.updates(sizes)
    hosts = piece_hosts(network, reductions)
    if not hides:
        hosts = hosts._replace(left={**hosts.beside, **hosts.left})
    return Pieces(
        dict(zip(kinds, map(float, beside), strict=True)),
        left * slower,
        dict(zip(kinds, map(float, updates * slower), strict=True)),
        hosts,
        _norm(layout, network, stage),
    )


@lru_cache(maxsize=256)
def reductions_of(
    model: Model, network: Network, replicas: tuple[Replica, ...], weights: str, gradients: str,
    states: str, codec: str,
) -> tuple[Reduction, ...]:  # fmt: skip
    """The reductions of a stage's gradients, one after another."""
    return tuple(
        Reduction(model, network, wave, weights, gradients, states, codec)
        for wave in waves(groups_of(replicas))
    )


@lru_cache(maxsize=256)
def piece_hosts(network: Network, reductions: tuple[Reduction, ...]) -> PieceHosts:
    """The hosts of a stage's reductions, by piece."""
    return PieceHosts(
        *(hosts_of(network, [each.groups[which] for each in reductions]) for which in range(3))
    )


def hosts_of(network: Network, every: Sequence[Groups]) -> dict[object, float]:
    """The hosts of groups of several hosts. The slowest host of a group sets the pace."""
    found: dict[object, float] = {}
    for group in (group for groups in every for group in groups):
        rates = {network.domain(rank, "host"): network.rate(rank) for rank in group}
        if len(rates) > 1:
            slowest = min(rates.values())
            for host, rate in rates.items():
                found[host] = max(found.get(host, 0.0), slowest / rate)
    return found


def _norm(layout: Layout, network: Network, stage: int) -> float:
    """Two numbers and the norm among a stage's replicas, and the norm among all stages: see
    partitioning/steps.py."""
    groups = groups_of(layout.stages[stage].replicas)
    data = [group for group in groups if len(group) > 1]
    lines = zip(*([replica.ranks[0] for replica in s.replicas] for s in layout.stages), strict=True)
    pipelines = [line for line in lines if len(line) > 1]
    small = network.collective
    return 2 * small("all_reduce", data, 16) + small("all_reduce", pipelines, 8)


def waves(groups: Groups) -> list[list[Sequence[int]]]:
    """Groups that run at once. A rank in several groups serves them one after another."""
    waves: list[list[Sequence[int]]] = []
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
    across, and the ranks of a level gather the weights. weights, gradients, states: the levels of
    weights, gradients and optimizer states; gradients divide before states do.
    """

    PARTS = ("beside", "left", "updates")  # methods, in the order of `groups`

    def __init__(
        self, model: Model, network: Network, groups: Groups, weights: str, gradients: str,
        states: str, codec: str,
    ) -> None:  # fmt: skip
        self.model, self.network, self.codec = model, network, codec
        self.first: tuple[Groups, int] = ((), 1)
        self.second: tuple[Groups, int] = ((), 1)
        self.updated: tuple[Groups, int] = ((), 1)
        if states == "rank":
            self.across, self.widest = _fixed(groups), 1
            return
        parts = [levels_of(network, group, states) for group in groups]
        inside = _fixed(part for each in parts for part in each)
        self.widest = max(map(len, inside))
        self.across = _fixed(
            [part[i % len(part)] for part in each] for each in parts for i in range(self.widest)
        )
        if gradients == states:
            self.first = inside, 1
        else:
            if gradients != "rank":
                some = [levels_of(network, group, gradients) for group in groups]
                self.first = _fixed(part for each in some for part in each), 1
            self.second = _updated(network, gradients, inside)
        if LEVELS.index(weights) < LEVELS.index(states):
            self.updated = _updated(network, weights, inside)

    @property
    def groups(self) -> tuple[Groups, Groups, Groups]:
        """Of each of PARTS."""
        return self.first[0], (*self.second[0], *self.across), self.updated[0]

    def seconds(self, parameters: Sequence[int]) -> NDArray[np.float64]:
        """Of so many parameters on each rank, for each of several numbers."""
        return self.beside(parameters) + self.left(parameters) + self.updates(parameters)

    def beside(self, parameters: Sequence[int]) -> NDArray[np.float64]:
        """Of the sum over the gradients' level."""
        return self._scatter(self.first, parameters)

    def left(self, parameters: Sequence[int]) -> NDArray[np.float64]:
        """Of the rest of the sum."""
        sizes = [count * self.model.gradient_bytes // self.widest for count in parameters]
        across = self.network.collectives("all_reduce", self.across, sizes, self.codec)
        return self._scatter(self.second, parameters) + across

    def updates(self, parameters: Sequence[int]) -> NDArray[np.float64]:
        """Of gathering new weights."""
        groups, widest = self.updated
        sizes = [count * self.model.weight_bytes // widest for count in parameters]
        return self.network.collectives("all_gather", groups, sizes)

    def _scatter(self, over: tuple[Groups, int], parameters: Sequence[int]) -> NDArray[np.float64]:
        groups, widest = over
        sizes = [count * self.model.gradient_bytes // widest for count in parameters]
        return self.network.collectives("reduce_scatter", groups, sizes, self.codec)


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


def _share(layout: Layout, network: Network, group: Sequence[int]) -> int:
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
