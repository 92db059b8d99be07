"""Parameters that modules of several groups hold, such as a pipeline's tied embeddings.

Each group reduces its gradients first. Then the ranks of equal shards add up theirs, as Megatron-LM
does. So all holders take the same step with the same bits, also with lossy codecs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from hetcomm import _core
from hetcomm.partitioning import agreement, collectives
from hetcomm.partitioning.collectives import Encoding
from hetcomm.partitioning.flat import Flat
from hetcomm.partitioning.grid import OPTIMIZER, Dimension, Grid, default_timeout
from hetcomm.partitioning.tensors import TensorGroup

Place = tuple[str, str, int, int, int, int]
"""Of a shard of a tied parameter: the name of the tie, how a tensor group divides the parameter,
the tensor rank, the range, and the number among the group's copies of the shard."""


class Ties:
    """The ranks that hold the same shard of a tied parameter, one of each group, by the tie."""

    def __init__(self, along: Mapping[str, Dimension]) -> None:
        self._along = along

    def __bool__(self) -> bool:
        return bool(self._along)

    def add_up(
        self, flats: Sequence[Flat], means: Sequence[torch.Tensor], encoding: Encoding
    ) -> None:
        """Sums the mean gradients of tied parameters over all groups, in place. means: by flat."""
        works = [
            collectives.all_sum(mean, self._along[flat.tie], encoding, f"{flat.name} tied")
            for flat, mean in zip(flats, means, strict=True)
            if flat.tie in self._along
        ]
        for work in works:
            work.wait()

    def copies(self, flats: Sequence[Flat]) -> list[int]:
        """The number of groups that hold each flat buffer."""
        return [self._along[flat.tie].size if flat.tie in self._along else 1 for flat in flats]


def tie(flats: Sequence[Flat], grid: Grid, tensors: TensorGroup, sync: bool) -> Ties:
    """The ties of a module's trainable flat buffers. A collective of all ranks.

    sync: one group gives its master weights to the others.

    Raises:
        hetcomm.InvalidArgumentError: groups divide a tied parameter unequally. All ranks raise it.
    """
    own = {
        (
            flat.tie,
            f"{flat.entries[0].division} among {tensors.size}",
            tensors.rank,
            *grid.shard(flat.length, OPTIMIZER),
            grid.replicas.position,
        ): flat
        for flat in flats
        if flat.tie
    }
    members = tuple(dist.get_process_group_ranks(grid.group))
    every = agreement.gather(lambda: (members, list(own)))
    along: dict[str, Dimension] = {}
    for place, ranks in sorted(_holders(every).items()):
        group = dist.group.WORLD
        if len(ranks) < len(every):
            group = dist.new_group(ranks, default_timeout(flats[0].weights.device))
        if place in own:
            flat = own[place]
            along[flat.tie] = Dimension(len(ranks), dist.get_rank(group), group)
            if sync:
                dist.broadcast(flat.master, ranks[0], group=group)
    return Ties(along)


def _holders(every: Sequence[tuple[tuple[int, ...], list[Place]]]) -> dict[Place, list[int]]:
    """The ranks of each place, those of the group with the least rank first."""
    ranks: dict[Place, list[int]] = {}
    groups: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    divisions: dict[str, set[str]] = {}
    for rank in sorted(range(len(every)), key=lambda rank: (every[rank][0], rank)):
        members, places = every[rank]
        for place in places:
            name, division, tensor_rank, *_ = place
            ranks.setdefault(place, []).append(rank)
            groups.setdefault((name, tensor_rank), set()).add(members)
            divisions.setdefault(name, set()).add(division)
    for name, found in divisions.items():
        if len(found) > 1:
            raise _core.InvalidArgumentError(
                f"{name}: expected all groups of ranks that hold this tied parameter to divide it "
                f"among equally many tensor ranks in one way, got {sorted(found)}; choose equal "
                "tensor degrees and styles, or untie the parameter"
            )
    for (name, _, tensor_rank, start, end, _), holders in ranks.items():
        several = len(groups[name, tensor_rank])
        if len(holders) != several:
            raise _core.InvalidArgumentError(
                f"{name}: expected all {several} groups of ranks that hold this tied "
                f"parameter to divide it equally, but ranks {holders} alone hold elements {start} "
                f"to {end}; choose for optimizer_states the level rank or cluster, and groups of "
                "equal sizes"
            )
    return ranks
