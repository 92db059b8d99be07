"""Seconds of the passes and transfers of each replica of a layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hetcomm.plan.layout import Layout, Replica, groups_of
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.network import Network, levels_of
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.prediction.simulate import Costs, LayerSeconds
from hetcomm.plan.profile import Profile, Times


def replica_costs(
    model: Model, layout: Layout, profile: Profile, network: Network, devices: Sequence[str],
    runtime: Runtime,
) -> tuple[list[Costs], float]:  # fmt: skip
    """The costs of each replica, and the largest error that the profile states."""
    return _Costs(model, layout, profile, network, devices, runtime).all()


# Seconds forward and backward, and Costs.layers.
_Pass = tuple[float, float, tuple[LayerSeconds, ...]]


class _Class(NamedTuple):
    """kinds: of devices. charged: whether the tensor group's collectives are not in the measured
    times. ranks: where their places matter."""

    kinds: tuple[str, ...]
    tensor: int
    context: int
    charged: bool
    ranks: tuple[int, ...]


class _Costs:
    def __init__(
        self, model: Model, layout: Layout, profile: Profile, network: Network,
        devices: Sequence[str], runtime: Runtime,
    ) -> None:  # fmt: skip
        self.model, self.layout, self.profile = model, layout, profile
        self.network, self.devices, self.runtime = network, devices, runtime
        self.error = 0.0
        self.samples = layout.micro_batch
        self.chunks = len(layout.stages[0].chunks)
        self.virtual = self.chunks * len(layout.stages)
        self._passes: dict[tuple[object, ...], _Pass] = {}

    def all(self) -> tuple[list[Costs], float]:
        stages = self.layout.stages
        boundaries = range(self.virtual - 1)
        activations = [self._transfers(v, backward=False) for v in boundaries]
        gradients = [self._transfers(v, backward=True) for v in boundaries]
        known: dict[tuple[object, ...], Costs] = {}
        found = []
        for r in range(self.layout.replicas):
            replicas = [stage.replicas[r] for stage in stages]
            moved = [tuple(each[r] for each in every) for every in (activations, gradients)]
            key = (*moved, *map(self._class, replicas))
            if key not in known:
                known[key] = self._of_replicas(replicas, *moved)
            found.append(known[key])
        return found, self.error

    def _class(self, replica: Replica) -> _Class:
        """Equal for replicas whose passes cost the same."""
        kinds = tuple(sorted({self.devices[rank] for rank in replica.ranks}))
        group = replica.ranks[: replica.tensor]
        charged = len(group) > 1 and (
            len(levels_of(self.network, group, "host")) > 1
            or any(self.profile.nearest(kind, "block", replica.tensor) == 1 for kind in kinds)
        )
        parts = self.runtime.parts and replica.tensor > 1
        spread = replica.ranks if charged or parts or replica.context > 1 else ()
        return _Class(kinds, replica.tensor, replica.context, charged, spread)

    def _of_replicas(
        self, replicas: Sequence[Replica], activation: Sequence[float], gradient: Sequence[float]
    ) -> Costs:
        """The costs of a pipeline, whose stages these are."""
        forward, backward, receive, receive_gradient, layers = [], [], [], [], []
        weights: list[float] = []
        for v in range(self.virtual):
            replica = replicas[v % len(replicas)]
            f, b, each = self._pass(v, replica)
            layers.append(each)
            own, message = self._host_work(replica)
            has_next, has_previous = v + 1 < self.virtual, v > 0
            halves = 1
            if self.layout.schedule == "zero_bubble":
                # The gradients of inputs and of weights take the same operations.
                halves = 2
                weights.append(b / 2 + own)
            forward.append(f + own + message * has_next)
            backward.append(b / halves + own + message * has_previous)
            work = self._receive(replica) + message
            receive.append(work if has_previous else 0.0)
            receive_gradient.append(work if has_next else 0.0)
        return Costs(
            tuple(forward), tuple(backward), activation, gradient, tuple(receive),
            tuple(receive_gradient), tuple(weights), tuple(layers),
        )  # fmt: skip

    def _pass(self, virtual: int, replica: Replica) -> _Pass:
        """Forward and backward of one virtual stage. The slowest device sets the pace of a replica.
        The time of a measured tensor group has the group's collectives, inside a host."""
        stages = self.layout.stages
        chunk, stage = divmod(virtual, len(stages))
        own = self._class(replica)
        kinds, charged, key = own.kinds, own.charged, (virtual, *own)
        if key not in self._passes:
            first, end = stages[stage].chunks[chunk]
            found = []
            for device in kinds:
                layers: list[LayerSeconds] = []
                for kind, count in self.model.count(first, end).items():
                    times = self._layer(kind, device, replica, stage, charged)
                    layers += [LayerSeconds(kind, times.forward, times.backward)] * count
                forward, backward = sum(t.forward for t in layers), sum(t.backward for t in layers)
                found.append((forward, backward, tuple(layers)))
            self._passes[key] = max(found, key=lambda each: each[0] + each[1])
        return self._passes[key]

    def _layer(self, kind: str, device: str, replica: Replica, stage: int, charged: bool) -> Times:
        times = self.profile.layer(self.model, device, kind, self.samples, replica.tensor)
        self.error = max(self.error, times.error)
        forward, backward = times.forward, times.backward
        if kind == "block":
            moved = self._block_collectives(replica, charged)
            forward, backward = forward + moved, backward + moved
            if replica.context > 1:
                forward, backward = self._context(replica, forward, backward)
            if self.layout.recompute:
                backward += forward
        elif replica.context > 1:
            forward, backward = forward / replica.context, backward / replica.context
        gather = self._gather_weights(kind, replica, stage)
        if self.runtime.gather_beside:
            return Times(max(forward, gather), max(backward, gather))
        return Times(forward + gather, backward + gather)

    def _block_collectives(self, replica: Replica, charged: bool) -> float:
        """Two all_reduces of the activations in each direction (Shoeybi et al. 2019, arXiv
        1909.08053), where they are not in the measured time."""
        if not charged:
            return 0.0
        group = replica.ranks[: replica.tensor]
        size = self.model.output_bytes() * self.samples // replica.context
        return 2 * self.network.collective("all_reduce", [group], size)

    def _context(self, replica: Replica, forward: float, backward: float) -> tuple[float, float]:
        """Each rank has its share of the sequence, and gathers keys and values; the backward pass
        gathers them again and reduces their gradients."""
        t, c = replica.tensor, replica.context
        groups = [replica.ranks[i::t] for i in range(t)]
        size = 2 * self.model.output_bytes() * self.samples // t
        moved = self.network.collective("all_gather", groups, size)
        return forward / c + moved, backward / c + 2 * moved

    def _gather_weights(self, kind: str, replica: Replica, stage: int) -> float:
        """Of one layer whose weights are partitioned, among the ranks of the level."""
        if self.layout.weights == "rank":
            return 0.0
        parts = [
            part
            for group in groups_of(self.layout.stages[stage].replicas)
            for part in levels_of(self.network, group, self.layout.weights)
        ]
        size = self.model.parameters(kind, replica.tensor) * self.model.weight_bytes
        return self.network.collective("all_gather", parts, size)

    def _transfers(self, virtual: int, backward: bool) -> list[float]:
        """Seconds of a transfer between a virtual stage and the next, of each replica. Replicas run
        alike, so those that share a host's NICs send at once."""
        stages = self.layout.stages
        ends = [stages[v % len(stages)] for v in (virtual, virtual + 1)]
        if ends[0] is ends[1]:
            return [0.0] * self.layout.replicas
        source, target = reversed(ends) if backward else ends
        finest = (1,) * self.layout.replicas
        if self.runtime.whole_parts:
            sizes = ([len(replica.ranks) for replica in stage.replicas] for stage in stages)
            finest = tuple(math.lcm(*each) for each in zip(*sizes, strict=True))
        waves, counts = waves_of(source.replicas, target.replicas, finest)
        plans = [
            (count, self._part(a, lanes))
            for a, (count, lanes) in zip(source.replicas, counts, strict=True)
        ]
        known: dict[tuple[int, int], float] = {}
        for each in plans:
            if each not in known:
                count, part = each
                known[each] = sum(self._message(pairs, part) for pairs in waves[:count])
        return [known[each] for each in plans]

    def _message(self, pairs: Sequence[tuple[int, int]], size: int) -> float:
        seconds = self.network.transfer(pairs, size)
        if self.runtime.messages > 1:
            seconds += (self.runtime.messages - 1) * self.network.transfer(pairs, 8)
        return seconds

    def _part(self, sender: Replica, lanes: int) -> int:
        """Bytes of one lane's message."""
        size = self.model.output_bytes() * self.samples
        if self.runtime.whole_parts:
            return -(-size // len(sender.ranks))
        return -(-size // (lanes if self.runtime.parts else sender.context))

    def _host_work(self, replica: Replica) -> tuple[float, float]:
        """Of a pass, and of a message with an activation at one end, on the slowest device."""
        size = self.model.output_bytes() * self.samples / replica.context
        works = [self.profile.host_work_of(self.devices[rank]) for rank in replica.ranks]
        return max(each.each_pass for each in works), max(each.of_message(size) for each in works)

    def _receive(self, replica: Replica) -> float:
        """Work of a stage on what came: through the host, and the parts of the tensor ranks."""
        size = self.model.output_bytes() * self.samples / replica.context
        paths = (self.runtime.host_path.get(self.devices[rank]) for rank in replica.ranks)
        seconds = max((path.seconds(size) for path in paths if path is not None), default=0.0)
        if self.runtime.parts and replica.tensor > 1:
            group = replica.ranks[: replica.tensor]
            seconds += self.network.collective("all_gather", [group], int(size))
        return seconds


@lru_cache(maxsize=128)
def waves_of(
    source: tuple[Replica, ...], target: tuple[Replica, ...], finest: tuple[int, ...]
) -> tuple[list[tuple[tuple[int, int], ...]], list[tuple[int, int]]]:
    """Who sends to whom, in rounds of all replicas; and of each replica its rounds and lanes, which
    are a multiple of `finest`."""
    waves: list[list[tuple[int, int]]] = []
    counts = []
    for a, b, fine in zip(source, target, finest, strict=True):
        lanes = math.lcm(len(a.ranks), len(b.ranks), fine)
        every = rounds(a.ranks, b.ranks, lanes)
        for i, pairs in enumerate(every):
            if len(waves) <= i:
                waves.append([])
            waves[i] += pairs
        counts.append((len(every), lanes))
    return list(map(tuple, waves)), counts


def rounds(source: Sequence[int], target: Sequence[int], lanes: int) -> list[list[tuple[int, int]]]:
    """Who sends to whom, in order. Lanes are cut at the same places on both sides; a rank serves
    its lanes one after another."""
    few = min(len(source), len(target))
    if len(source) == len(target) == lanes:
        return [list(zip(source, target, strict=True))]
    found: list[list[tuple[int, int]]] = [[] for _ in range(lanes // few)]
    for lane in range(lanes):
        pair = (source[lane * len(source) // lanes], target[lane * len(target) // lanes])
        found[lane % len(found)].append(pair)
    return found
