"""The place of each rank in a grid of four dimensions, and the range that the rank holds.

The levels divide a flat buffer step by step. The ranks of a weights group hold its parts, so that
weights are one dimension. The ranks with the same part, in one gradients group, divide this part
further: gradients are the next dimension. Optimizer states follow in the same way. The last
dimension has the ranks with equal optimizer states, the replicas. So an optimizer shard lies inside
its gradient shard, and a gradient shard inside its weight shard, in any order of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from hetcomm.partitioning import agreement
from hetcomm.partitioning.levels import Groups

# So many dimensions divide a buffer: one divides weights, two gradients, three optimizer states.
WEIGHTS, GRADIENTS, OPTIMIZER = 1, 2, 3


@dataclass(frozen=True)
class Dimension:
    """One dimension of the grid, as this rank sees it.

    size: ranks along the dimension; position: of this rank; group: these ranks, None for one rank.
    """

    size: int
    position: int
    group: Any = None


@dataclass(frozen=True)
class Grid:
    """The four dimensions of a group of ranks, seen from this rank."""

    weights: Dimension
    gradients: Dimension
    optimizer: Dimension
    replicas: Dimension
    group: Any = None

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return (self.weights, self.gradients, self.optimizer, self.replicas)

    @property
    def ranks(self) -> int:
        return prod(dimension.size for dimension in self.dimensions)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Gives the values of the group's first rank to all its ranks. A collective of these."""
        first = dist.get_process_group_ranks(self.group)[0]
        dist.broadcast(tensor, first, group=self.group)

    def parts(self, depth: int) -> int:
        """Parts of a buffer that `depth` dimensions divide: WEIGHTS, GRADIENTS or OPTIMIZER."""
        return prod(dimension.size for dimension in self.dimensions[:depth])

    def shard(self, length: int, depth: int) -> tuple[int, int]:
        """Start and end of this rank's part of a buffer of `length` elements; see parts()."""
        start, extent = 0, length
        for dimension in self.dimensions[:depth]:
            extent //= dimension.size
            start += dimension.position * extent
        return start, start + extent


def lines(levels: Sequence[Groups], size: int) -> list[Groups]:
    """By dimension, the groups of ranks that lie along it. levels: nested, the innermost first."""
    places: list[tuple[int, ...]] = [()] * size
    found = []
    for groups in (*levels, [list(range(size))]):
        line: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for index, group in enumerate(groups):
            for rank in group:
                line.setdefault((index, places[rank]), []).append(rank)
        for ranks in line.values():
            for position, rank in enumerate(ranks):
                places[rank] = (*places[rank], position)
        found.append(sorted(line.values()))
    return found


def default_timeout(device: torch.device) -> timedelta | None:
    """The timeout of the default group, if its backend tells."""
    backend = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
    return getattr(getattr(backend, "options", None), "_timeout", None)


def build(
    levels: Sequence[Groups], device: torch.device, timeout: timedelta | None, group: Any
) -> Grid:
    """Makes the grid of a group and its process groups. A collective of the group's ranks.

    levels: of ranks in the group. timeout: of the groups; None takes that of the default group, if
    its backend tells.
    """
    rank, members = dist.get_rank(group), dist.get_process_group_ranks(group)
    size, alone = len(members), group is not dist.group.WORLD
    timeout = timeout or default_timeout(device)
    if alone and any(1 < len(each) < size for groups in levels for each in groups):
        # torch names a group by its ranks and by the number of groups that a rank has.
        counts = agreement.gather(lambda: len(dist.distributed_c10d._world.pg_names), group)
        agreement.require_equal(
            "process groups", list(counts), "make the same number of groups on all ranks of group="
        )
    dimensions = []
    for line in lines(levels, size):
        mine = Dimension(1, 0)
        for ranks in line:
            if len(ranks) == 1:
                continue
            if alone and rank not in ranks:
                continue
            along = group
            if len(ranks) < size:
                global_ranks = [members[each] for each in ranks]
                along = dist.new_group(global_ranks, timeout, use_local_synchronization=alone)
            if rank in ranks:
                mine = Dimension(len(ranks), ranks.index(rank), along)
        dimensions.append(mine)
    weights, gradients, optimizer, replicas = dimensions
    return Grid(weights, gradients, optimizer, replicas, group)
