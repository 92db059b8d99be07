"""Seconds of transfers and collectives among ranks: of measured curves, or of hetcomm's plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hetcomm import _core
from hetcomm.emulate.cluster import SLOWEST
from hetcomm.explain_plan import planner_of
from hetcomm.plan.layout import LEVELS
from hetcomm.plan.prediction.links import links_of
from hetcomm.plan.refuse import positive, refuse

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
Groups = Sequence[Sequence[int]]


class Network(Hashable, Protocol):
    """What a job's ranks have between them. All times are seconds."""

    @property
    def ranks(self) -> int:
        """How many ranks the network joins."""

    def domain(self, rank: int, level: str) -> object:
        """A key that all ranks of one level ("rank", "island", "host", "cluster") share."""

    def rate(self, rank: int) -> float:
        """Bytes per second of the NICs of a rank's host, or 1 on all hosts if these are unknown."""

    def transfer(self, pairs: Sequence[tuple[int, int]], size: int) -> float:
        """All pairs (source, target) at once, each with `size` bytes; until the last is over."""

    def collective(self, name: str, groups: Groups, size: int, codec: str = "none") -> float:
        """One of COLLECTIVES in all groups at once. size: bytes of the larger buffer of a rank.
        codec: of messages between hosts, where the network knows codecs."""

    def collectives(
        self, name: str, groups: Groups, sizes: Sequence[int], codec: str = "none"
    ) -> NDArray[np.float64]:
        """collective() of each of several sizes."""


def levels_of(network: Network, group: Sequence[int], level: str) -> list[list[int]]:
    """The parts of a group that share a level, each in the group's order."""
    if level not in LEVELS:
        refuse("level", f"one of {', '.join(LEVELS)}", level, "choose one of these")
    parts: dict[object, list[int]] = {}
    for rank in group:
        parts.setdefault(network.domain(rank, level), []).append(rank)
    return list(parts.values())


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes per second of n flows together, by the bytes of one flow.

    Gigabytes per second are c2 x^2 + c1 x + c0 with x = log2(megabytes), at most `most`. The fit
    holds for messages from `least` bytes on. A shorter message takes as long as the fastest longer
    one: no message is slower than a longer one.
    """

    flows: int
    c2: float
    c1: float
    c0: float
    most: float
    least: int = 1 << 16
    floor: float = field(init=False, compare=False)  # seconds of the fastest message
    floor_bytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        positive("curve: the highest bandwidth", self.most)
        sizes = [self.least << i for i in range(14)]
        fastest = min(sizes, key=self._raw)
        if math.isinf(self._raw(fastest)):
            refuse("curve", "a bandwidth above 0", (self.c2, self.c1, self.c0), "measure the link")
        object.__setattr__(self, "floor", self._raw(fastest))
        object.__setattr__(self, "floor_bytes", fastest)

    def _raw(self, size: float) -> float:
        x = math.log2(max(size, self.least) / 1e6)
        rate = min(self.c2 * x * x + self.c1 * x + self.c0, self.most) / self.flows * 1e9
        return max(size, self.least) / rate if rate > 0 else math.inf

    def seconds(self, size: float) -> float:
        """Of a message of each flow."""
        if size <= 0:
            return 0.0
        top = 1 << 30  # beyond the fitted sizes the rate stays
        if size > top:
            return self._raw(top) * size / top
        return self.floor if size <= self.floor_bytes else max(self.floor, self._raw(size))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is. host: its name. device: its kind, as in the keys of Curves. zone: of the
    cluster; a host is in one zone. island: of the host, whose ranks have faster links; one island
    per host needs no name."""

    host: str
    device: str
    zone: str = ""
    island: str = ""


@dataclass(eq=False)
class Curves:
    """A network of measured curves between hosts and inside hosts.

    places: of each rank. between: [((zone, device) of the source, (zone, device) of the target)] ->
    a curve for each measured number of flows. inside: [device] -> the same for flows inside a host,
    each from one rank to another; a device with one rank per host needs none. islands: [device] ->
    the same for flows inside an island; a device without has the curves of `inside` there.
    """

    places: Sequence[Place]
    between: Mapping[tuple[tuple[str, str], tuple[str, str]], Sequence[Curve]]
    inside: Mapping[str, Sequence[Curve]]
    islands: Mapping[str, Sequence[Curve]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.places)

    def domain(self, rank: int, level: str) -> object:
        place = self.places[rank]
        island = (place.host, place.island)
        return {"rank": rank, "cluster": "", "host": place.host, "island": island}[level]

    def rate(self, rank: int) -> float:
        return 1.0

    def transfer(self, pairs: Sequence[tuple[int, int]], size: int) -> float:
        """Messages between hosts share the sender's NICs and the receiver's."""
        leaving: dict[tuple[str, str], int] = {}
        inside: dict[tuple[str, str | None], set[int]] = {}
        found: dict[tuple[str, str, str, str, str, int], float] = {}
        edges = []
        for a, b in pairs:
            one, two = self.places[a], self.places[b]
            level = self._level(one, two)
            shared = (one.host, one.island if level == "island" else None)
            edges.append((one, two, level, shared))
            if level == "cluster":
                for port in (("out", one.host), ("in", two.host)):
                    leaving[port] = leaving.get(port, 0) + 1
            else:
                inside.setdefault(shared, set()).update((a, b))
        worst = 0.0
        for one, two, level, shared in edges:
            if level == "cluster":
                flows = max(leaving["out", one.host], leaving["in", two.host])
            else:
                flows = len(inside[shared]) // 2
            key = (one.zone, one.device, two.zone, two.device, level, flows)
            if key not in found:
                found[key] = self._message(one, two, size, flows)
                worst = max(worst, found[key])
        return worst

    def _level(self, one: Place, two: Place) -> str:
        """The narrowest level whose links join two places."""
        if one.host != two.host:
            return "cluster"
        return "island" if one.island == two.island and one.device in self.islands else "host"

    def _message(self, source: Place, target: Place, size: float, flows: int) -> float:
        """n pairs of ranks inside a host have links of their own in each direction, so a ring over
        2 n ranks moves what n pairs do. Between hosts flows share at least what fewer flows had."""
        local = (level := self._level(source, target)) != "cluster"
        if local:
            table = self.islands if level == "island" else self.inside
            curves, what = table.get(source.device, ()), f"inside a host of {source.device}"
        else:
            key = ((source.zone, source.device), (target.zone, target.device))
            curves, what = self.between.get(key, ()), f"from {key[0]} to {key[1]}"
        if not curves:
            refuse(f"network: a curve {what}", "a measured curve", "none", "measure this link")
        fewer = [curve for curve in curves if curve.flows <= flows] or [
            min(curves, key=lambda curve: curve.flows)
        ]
        if local:
            return max(fewer, key=lambda curve: curve.flows).seconds(size)
        return min(curve.seconds(size) * max(1.0, flows / curve.flows) for curve in fewer)

    def collective(self, name: str, groups: Groups, size: int, codec: str = "none") -> float:
        """By rings in the groups' order, as NCCL's for long messages: n - 1 rounds of size / n
        bytes, twice for an all_reduce. The slowest neighbours set the pace of a round. Bytes travel
        as they are, with any codec."""
        rounds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}[name]
        edges: dict[int, list[tuple[int, int]]] = {}
        for group in groups:
            if len(group) > 1:
                ring = list(zip(group, [*group[1:], group[0]], strict=True))
                edges.setdefault(len(group), []).extend(ring)
        return max(
            (
                rounds * (n - 1) * self.transfer(pairs, math.ceil(size / n))
                for n, pairs in edges.items()
            ),
            default=0.0,
        )

    def collectives(
        self, name: str, groups: Groups, sizes: Sequence[int], codec: str = "none"
    ) -> NDArray[np.float64]:
        return np.array([self.collective(name, groups, size, codec) for size in sizes])


class _Priced(NamedTuple):
    """The ranks that stand for a group, what distinguishes them, the groups that share a host's
    NICs, those that share an uplink of a zone, and the ratio of the prices."""

    group: tuple[int, ...]
    key: tuple[object, ...]
    sharing: int
    of_zone: int
    factor: float


def _describe(info: _core.RankInfo) -> tuple[object, ...]:
    nics = tuple((nic.fabric.name, nic.bandwidth, nic.subnet) for nic in info.nics)
    return (info.vendor, info.memory.name, info.cores, nics)


class PlannedNetwork:
    """A network whose times are those of hetcomm's own plans, priced by the core's cost model.

    topology: of all ranks of the job, as hetcomm.explain.topology_of() makes it of a cluster file.
    profile: of hetcomm tune; None: the file of HETCOMM_PROFILE, if that is set.
    Sizes up to SIZES[1] are priced exactly once each; longer ones follow the line through SIZES.
    Groups that share a host's NICs have equal parts of the NICs' bandwidth. A group of more than
    LARGEST ranks is priced as evenly chosen hosts of it, times the ratio of (n - 1) / n: beyond
    some hosts each one sends nearly the same bytes, and large plans take seconds to make.
    """

    SIZES = (4 << 20, 16 << 20)
    LARGEST = 16

    def __init__(self, topology: _core.Topology, profile: _core.Profile | None = None) -> None:
        if len(topology.hosts) > 1:
            for index in range(len(topology.hosts)):
                what = f"network: bandwidth of host {index}"
                positive(what, topology.host_bandwidth(index), "give the host a NIC")
        self.topology = topology
        # One profile for both the choice and the price of a plan.
        self.profile = profile or _core.Profile.setting()
        self._prices: dict[tuple[object, ...], float] = {}
        infos = topology.ranks
        self._hosts = [topology.host_of(rank) for rank in range(len(infos))]
        self._islands = [topology.island_of(rank) for rank in range(len(infos))]
        descriptions: dict[tuple[object, ...], int] = {}
        self._kinds = [
            descriptions.setdefault(_describe(info), len(descriptions)) for info in infos
        ]
        self._known: dict[tuple[tuple[int, ...], ...], list[_Priced]] = {}
        # By host: its zones of all levels.
        self._zones: list[list[tuple[int, int]]] = [[] for _ in topology.hosts]
        self._uplinks: dict[tuple[int, int], int] = {}
        self._names: dict[tuple[int, int], str] = {}
        for level, zones in enumerate(topology.zones):
            for number, zone in enumerate(zones):
                self._uplinks[level, number] = zone.uplink
                self._names[level, number] = zone.name.rpartition("/")[2]
                for host in zone.hosts:
                    self._zones[host].append((level, number))

    @property
    def ranks(self) -> int:
        return len(self._hosts)

    def domain(self, rank: int, level: str) -> object:
        if level == "host":
            return self._hosts[rank]
        if level == "island":
            return self._islands[rank]
        return rank if level == "rank" else ""

    def rate(self, rank: int) -> float:
        return float(max(1, self.topology.host_bandwidth(self._hosts[rank])))

    def transfer(self, pairs: Sequence[tuple[int, int]], size: int) -> float:
        return float(self._worst("broadcast", tuple(pairs), [size], "none")[0])

    def collective(self, name: str, groups: Groups, size: int, codec: str = "none") -> float:
        return float(self.collectives(name, groups, [size], codec)[0])

    def collectives(
        self, name: str, groups: Groups, sizes: Sequence[int], codec: str = "none"
    ) -> NDArray[np.float64]:
        if name not in COLLECTIVES:
            refuse("collective", f"one of {', '.join(COLLECTIVES)}", name, "choose one of these")
        several = tuple(tuple(group) for group in groups if len(group) > 1)
        return self._worst(name, several, sizes, codec)

    def _worst(
        self, name: str, groups: tuple[tuple[int, ...], ...], sizes: Sequence[int], codec: str
    ) -> NDArray[np.float64]:
        if groups not in self._known:
            self._known[groups] = self._unlike(groups)
        found = np.zeros(len(sizes))
        for each in self._known[groups]:
            np.maximum(found, self._prices_of(name, each, sizes, codec), out=found)
        return found

    def _unlike(self, groups: tuple[tuple[int, ...], ...]) -> list[_Priced]:
        """One of each kind of group: equal shapes with equal shares of NICs cost the same."""
        hosts = [{self._hosts[rank] for rank in group} for group in groups]
        crossing = Counter(host for each in hosts if len(each) > 1 for host in each)
        zones = [self._crossed(each) for each in hosts]
        leaving = Counter(zone for each in zones for zone in each)
        found: dict[tuple[object, ...], _Priced] = {}
        for group, each, crossed in zip(groups, hosts, zones, strict=True):
            sharing = max((crossing.get(host, 1) for host in each), default=1)
            of_zone = max((leaving[zone] for zone in crossed), default=1)
            chosen = tuple(self._chosen(group))
            factor = (1 - 1 / len(group)) / (1 - 1 / len(chosen))
            # Hosts by their first rank, in group order.
            first: dict[int, int] = {}
            shape = tuple(first.setdefault(self._hosts[rank], len(first)) for rank in chosen)
            key = (
                shape,
                tuple(self._kinds[rank] for rank in chosen),
                self._shape_of_zones(chosen),
                sharing,
                of_zone,
            )
            if key not in found or found[key].factor < factor:
                found[key] = _Priced(chosen, key, sharing, of_zone, factor)
        return list(found.values())

    def _crossed(self, hosts: set[int]) -> set[tuple[int, int]]:
        """The zones with an uplink that messages between the hosts leave."""
        every = [set(self._zones[host]) for host in hosts]
        around = set.intersection(*every) if every else set()
        return {zone for zone in set().union(*every) - around if self._uplinks[zone] > 0}

    def _shape_of_zones(self, ranks: Sequence[int]) -> tuple[object, ...]:
        """By rank: its zones, numbered in the order of the ranks, and their uplinks."""
        first: dict[tuple[int, int], int] = {}
        return tuple(
            tuple(
                (first.setdefault(zone, len(first)), self._uplinks[zone])
                for zone in self._zones[self._hosts[rank]]
            )
            for rank in ranks
        )

    def _zone_of(self, rank: int, sharing: int) -> str:
        """The label of a rank's host, where so many groups share each uplink."""
        parts = []
        for zone in self._zones[self._hosts[rank]]:
            uplink = self._uplinks[zone]
            kilobits = max(SLOWEST, uplink * 8 // sharing) // 1000
            parts.append(self._names[zone] + (f"@{kilobits}kbit" if uplink else ""))
        return "/".join(parts)

    def _chosen(self, group: tuple[int, ...]) -> Sequence[int]:
        """The group's ranks on evenly chosen hosts, and on few of each host, LARGEST at most."""
        if len(group) <= self.LARGEST:
            return group
        members: dict[int, list[int]] = {}
        for rank in group:
            members.setdefault(self._hosts[rank], []).append(rank)
        each = min(max(map(len, members.values())), self.LARGEST // 2)
        count = min(len(members), self.LARGEST // each)
        hosts = list(members.values())
        taken = {r for i in range(count) for r in hosts[i * len(hosts) // count][:each]}
        return [rank for rank in group if rank in taken]

    def _prices_of(
        self, name: str, priced: _Priced, sizes: Sequence[int], codec: str
    ) -> NDArray[np.float64]:
        small, large = self.SIZES
        if max(sizes) <= large:
            return np.array([self._exact(name, priced, size, codec) for size in sizes])
        low, high = (self._exact(name, priced, each, codec) for each in self.SIZES)
        found = high + (high - low) * (np.asarray(sizes, dtype=np.float64) - large) / (
            large - small
        )
        for place, size in enumerate(sizes):
            if size <= large:
                found[place] = self._exact(name, priced, size, codec)
        return np.asarray(found)

    def _exact(self, name: str, priced: _Priced, size: int, codec: str) -> float:
        key = (name, size, codec, *priced.key)
        if key not in self._prices:
            self._prices[key] = self._predicted(name, priced, size, codec)
        return self._prices[key] * priced.factor

    def _predicted(self, name: str, priced: _Priced, size: int, codec: str) -> float:
        group, sharing = priced.group, priced.sharing
        infos = [self.topology.rank(rank) for rank in group]
        whole = _core.Topology(infos)
        for rank, info in zip(group, infos, strict=True):
            info.zone = self._zone_of(rank, priced.of_zone)
            nics = info.nics
            for nic in nics:
                nic.bandwidth = max(1, nic.bandwidth // sharing)
            info.nics = nics
        part = _core.Topology(infos)
        links = self.profile and links_of(self.profile, whole, part, sharing)
        many = name in ("all_gather", "reduce_scatter")
        elements = max(1, math.ceil(size / 4 / (len(group) if many else 1)))
        spec = _core.Spec(getattr(_core.Collective, name), count=elements).with_codec(codec)
        plans = planner_of(part, links).plan_all(spec)
        cost = _core.predict(part, plans, _core.CostParameters(links))
        return float(cost.total) * 1e-9
