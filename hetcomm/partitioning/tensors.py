"""The tensor group of a partitioned module: its ranks hold unlike shards, and copies of the rest.

Each rank partitions its own values among the ranks with the same values. What tensor ranks hold in
common must stay equal: norms, and biases of row-parallel layers. torch's tensor parallelism gives
all of them the same gradients. Their mean makes the bits equal, also with lossy codecs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from hetcomm import _core
from hetcomm.partitioning import agreement, local
from hetcomm.partitioning.flat import Flat
from hetcomm.partitioning.grid import OPTIMIZER, Grid


class TensorGroup:
    """The tensor group of this rank; none: a group of one rank."""

    def __init__(self, group: Any, flats: Sequence[Flat], grid: Grid, sync: bool) -> None:
        """flats: trainable ones. sync: the first rank gives its copies to the others. A collective
        of the group's ranks.

        Raises hetcomm.InvalidArgumentError if ranks divide their copies unequally.
        """
        self.group = group
        self.size, self.rank = 1, 0
        if group is not None:
            self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self._copied = [flat for flat in flats if not flat.sharded] if self.size > 1 else []
        if self.size == 1:
            return
        ranges = [(flat.name, *grid.shard(flat.length, OPTIMIZER)) for flat in self._copied]
        every = agreement.gather(lambda: ranges, group)
        if any(each != every[0] for each in every):
            raise _core.InvalidArgumentError(
                "module: expected the ranks of a tensor group to divide their equal parameters "
                "alike, but their data groups have other shapes or orders; choose for "
                "optimizer_states the level rank or cluster, and ascending ranks in each replica"
            )
        if sync:
            self._share()

    def _share(self) -> None:
        first = dist.get_process_group_ranks(self.group)[0]
        for flat in self._copied:
            dist.broadcast(flat.weights, first, group=self.group)
            if not flat.aliased:
                dist.broadcast(flat.master, first, group=self.group)

    def average(self, flats: Sequence[Flat], means: Sequence[torch.Tensor]) -> None:
        """Gives tensor ranks the same gradients of what they hold in common, in place."""
        works = []
        for flat, mean in zip(flats, means, strict=True):
            if any(flat is each for each in self._copied):
                mean /= self.size
                works.append(dist.all_reduce(mean, group=self.group, async_op=True))
        for work in works:
            work.wait()

    def copies(self, flats: Sequence[Flat]) -> list[int]:
        """The number of ranks of the group that hold each flat buffer."""
        return [1 if flat.sharded else self.size for flat in flats]


def group_of(module: torch.nn.Module, given: Any) -> Any:
    """The tensor group of a module's parameters: `given`, or that of their mesh. None if there is
    none.

    Raises hetcomm.InvalidArgumentError if the two differ.
    """
    mesh = local.mesh_of(module.parameters())
    if mesh is None:
        return given
    found = mesh.get_group()
    if given is not None:
        own, ranks = (dist.get_process_group_ranks(each) for each in (found, given))
        if sorted(own) != sorted(ranks):
            raise _core.InvalidArgumentError(
                f"tensor_group: expected the ranks {own} of the parameters' mesh, got {ranks}; "
                "leave tensor_group out"
            )
    return found
