"""Pools: the ranks of a cluster by kind of device and fabric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hetcomm.emulate.cluster import FABRICS, Cluster, Host


@dataclass(frozen=True)
class Pool:
    """Hosts whose devices are of one kind, and whose best NICs are of one fabric.

    Groups that sum gradients inside a pool need one network only, as in Holmes (arXiv 2312.03549).
    hosts: the ranks of each host. uniform: hosts have equally many ranks and equal NICs, and are in
    one zone.
    """

    kind: str
    fabric: str
    hosts: tuple[tuple[int, ...], ...]
    uniform: bool = True

    @cached_property
    def ranks(self) -> int:
        return sum(map(len, self.hosts))

    @cached_property
    def widest(self) -> int:
        """The ranks of the largest host."""
        return max(map(len, self.hosts))

    def slots(self, width: int) -> list[tuple[int, ...]]:
        """Disjoint groups of so many ranks, each inside one host, in the order of hosts."""
        return [
            host[first : first + width]
            for host in self.hosts
            for first in range(0, len(host) - width + 1, width)
        ]

    def capacity(self, width: int) -> int:
        """The number of slots of this width."""
        return sum(count * (size // width) for size, count in self.sizes.items())

    @cached_property
    def sizes(self) -> Counter[int]:
        """The number of hosts by their ranks."""
        return Counter(map(len, self.hosts))


def pools_of(cluster: Cluster) -> list[Pool]:
    """The pools of a cluster, in the order of their first hosts."""
    ranks: dict[int, list[int]] = {}
    for rank, place in enumerate(cluster.placement):
        ranks.setdefault(place, []).append(rank)
    members: dict[tuple[str, str], list[int]] = {}
    for index, host in enumerate(cluster.hosts):
        members.setdefault((host.kind, best_fabric(host)), []).append(index)
    pools = []
    for (kind, fabric), indices in members.items():
        hosts = [cluster.hosts[i] for i in indices]
        alike = {(host.ranks, host.nics, host.zone) for host in hosts}
        pools.append(Pool(kind, fabric, tuple(tuple(ranks[i]) for i in indices), len(alike) == 1))
    return pools


def best_fabric(host: Host) -> str:
    """The fabric of the host's best NIC: RDMA before plain Ethernet."""
    return max((nic.fabric for nic in host.nics), key=FABRICS.index)


def names(pools: Sequence[Pool]) -> list[str]:
    """Of each pool: its kind, and its fabric where the kind has several pools."""
    kinds = [pool.kind for pool in pools]
    return [
        pool.kind if kinds.count(pool.kind) == 1 else f"{pool.kind} over {pool.fabric}"
        for pool in pools
    ]
