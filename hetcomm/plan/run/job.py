"""A rank's place in the job that a layout describes, and the process groups of that place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hetcomm import _core
from hetcomm.partitioning import agreement
from hetcomm.partitioning.grid import default_timeout
from hetcomm.plan.layout import Layout
from hetcomm.plan.run.orders import degrees, rank_order

DIMENSIONS = ("pipeline", "data", "context", "tensor")


@dataclass(frozen=True)
class Neighbours:
    """A rank's partners in the stage before or after, for activations and gradients alike.

    source: the rank that sends to this one; targets: the ranks that this one sends to. Replicas of
    equal sizes give one target. Otherwise a rank may have several targets, or none.
    """

    source: int
    targets: tuple[int, ...]


class Job:
    """The place of this rank in a layout. load() makes it.

    stage, replica, context_rank, tensor_rank: the place. tensor_group, context_group: the ranks of
    the replica that differ in this rank alone. data_groups: the ranks that hold the same weights
    and sum their gradients, of all replicas and context ranks. This is one group, unless replicas
    of the stage have unlike tensor degrees: then one for each part of the weights that this rank
    holds, as in Layout.data_groups(). pipeline_group: one rank of each stage. model_group: the
    ranks of the replica that hold one whole model together, of all stages and tensor ranks.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        """Makes the groups. A collective of all ranks. They have the same layout.

        device: of the model; its index does not matter.
        """
        self.layout, self.device = layout, device
        self.rank = dist.get_rank()
        self.stage, self.replica, self.position = layout.place(self.rank)
        tensor = layout.stages[self.stage].replicas[self.replica].tensor
        self.context_rank, self.tensor_rank = divmod(self.position, tensor)
        self._made: dict[tuple[int, ...], Any] = {}
        self.data_groups = self.groups(
            ranks for s in range(len(layout.stages)) for ranks in layout.data_groups(s)
        )
        (
            self.tensor_group,
            self.context_group,
            self.pipeline_group,
            self._replica_group,
            self.model_group,
        ) = (
            self.groups(lines(layout))[0]
            for lines in (_tensor, _context, _pipeline, _replicas, _models)
        )

    def groups(self, every: Iterable[Sequence[int]]) -> list[Any]:
        """This rank's groups among several. All ranks make all groups, in the same order.

        Groups of equal ranks are made once, and those of one rank by this rank alone.
        """
        timeout = default_timeout(self.device)
        mine = []
        for ranks in every:
            key = tuple(sorted(ranks))
            alone = len(key) == 1
            if key not in self._made and (self.rank in key or not alone):
                whole = len(key) == dist.get_world_size()
                self._made[key] = (
                    dist.group.WORLD
                    if whole
                    else dist.new_group(key, timeout, use_local_synchronization=alone)
                )
            if self.rank in key and self._made[key] not in mine:
                mine.append(self._made[key])
        return mine

    @property
    def is_first(self) -> bool:
        """Whether this rank's stage takes the model's inputs."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank's stage computes the loss."""
        return self.stage == len(self.layout.stages) - 1

    @property
    def data_group(self) -> Any:
        """The only one of data_groups.

        Raises hetcomm.InvalidArgumentError if there are several.
        """
        if len({replica.tensor for replica in self.layout.stages[self.stage].replicas}) > 1:
            raise _core.InvalidArgumentError(
                f"layout: expected one tensor degree in all replicas of stage {self.stage}, got "
                "several; plan with one degree (hetcomm plan --tensor), or sum gradients by parts "
                "over data_groups"
            )
        return self.data_groups[0]

    @property
    def previous(self) -> Neighbours:
        """The partners in the stage before. Those of the first stage are in the last stage."""
        return self._neighbours(self.stage - 1)

    @property
    def next(self) -> Neighbours:
        """The partners in the stage after. Those of the last stage are in the first stage."""
        return self._neighbours(self.stage + 1)

    def _neighbours(self, stage: int) -> Neighbours:
        stages = self.layout.stages
        here = len(stages[self.stage].replicas[self.replica].ranks)
        ranks = stages[stage % len(stages)].replicas[self.replica].ranks
        return Neighbours(
            source=ranks[self.position * len(ranks) // here],
            targets=tuple(
                rank
                for position, rank in enumerate(ranks)
                if position * here // len(ranks) == self.position
            ),
        )

    @cached_property
    def mesh(self) -> DeviceMesh:
        """All ranks by pipeline, data, context and tensor rank, with dimensions of these names.

        Raises hetcomm.InvalidArgumentError for replicas of unlike degrees. Also raises it where
        ranks descend along a dimension, because torch sorts the ranks of a group.
        """
        ranks = torch.tensor(rank_order(self.layout)).view(degrees(self.layout))
        for dimension, name in enumerate(DIMENSIONS):
            if not (ranks.diff(dim=dimension) > 0).all():
                raise _core.InvalidArgumentError(
                    f"layout: expected ascending ranks along the mesh's dimension {name!r}, got "
                    f"{ranks.tolist()}; start ranks in the layout's order, or take the Job's groups"
                )
        groups = [self.pipeline_group, self._replica_group, self.context_group, self.tensor_group]
        return DeviceMesh.from_group(groups, self.device.type, ranks, mesh_dim_names=DIMENSIONS)

    @cached_property
    def tensor_mesh(self) -> DeviceMesh:
        """The ranks of tensor_group, in one dimension: the mesh for torch's tensor parallelism.

        It exists with unlike degrees too. Raises hetcomm.InvalidArgumentError where ranks of a
        tensor group descend, because torch sorts the ranks of a group.
        """
        for ranks in _tensor(self.layout):
            if list(ranks) != sorted(ranks):
                raise _core.InvalidArgumentError(
                    f"layout: expected ascending ranks in each tensor group, got {ranks}; start "
                    "ranks in the layout's order"
                )
        return DeviceMesh.from_group(
            self.tensor_group, self.device.type, mesh_dim_names=("tensor",)
        )

    def rank_order(self) -> list[int]:
        """The rank at each rank of a launcher such as Megatron-LM's: hetcomm.plan.rank_order()."""
        return rank_order(self.layout)

    def share(self, batch: torch.Tensor) -> torch.Tensor:
        """This replica's samples of a step, a view: (its micro-batches * micro_batch, ...) of
        (batch, ...).

        Raises hetcomm.InvalidArgumentError for a batch of another size than the layout's.
        """
        if len(batch) != self.layout.batch:
            raise _core.InvalidArgumentError(
                f"batch: expected the {self.layout.batch} samples of the layout, got {len(batch)}"
            )
        sizes = [count * self.layout.micro_batch for count in self.layout.micro_batches]
        return batch.split(sizes)[self.replica]


def _tensor(layout: Layout) -> Iterator[tuple[int, ...]]:
    for stage in layout.stages:
        for replica in stage.replicas:
            for start in range(0, len(replica.ranks), replica.tensor):
                yield replica.ranks[start : start + replica.tensor]


def _context(layout: Layout) -> Iterator[tuple[int, ...]]:
    for stage in layout.stages:
        for replica in stage.replicas:
            for first in range(replica.tensor):
                yield replica.ranks[first :: replica.tensor]


def _pipeline(layout: Layout) -> Iterator[tuple[int, ...]]:
    """One rank of each stage. A small replica's ranks are in several."""
    for replicas in zip(*(stage.replicas for stage in layout.stages), strict=True):
        most = max(len(replica.ranks) for replica in replicas)
        for line in range(most):
            yield tuple(each.ranks[line * len(each.ranks) // most] for each in replicas)


def _replicas(layout: Layout) -> Iterator[tuple[int, ...]]:
    """The ranks of equal positions in all replicas of a stage."""
    for stage in layout.stages:
        most = max(len(replica.ranks) for replica in stage.replicas)
        for line in range(most):
            yield tuple(
                replica.ranks[line * len(replica.ranks) // most] for replica in stage.replicas
            )


def _models(layout: Layout) -> Iterator[tuple[int, ...]]:
    """The ranks of a replica's stages with equal context ranks."""
    for replicas in zip(*(stage.replicas for stage in layout.stages), strict=True):
        for c in range(replicas[0].context):
            yield tuple(
                rank for each in replicas for rank in each.ranks[c * each.tensor :][: each.tensor]
            )


def load(path: str | Path, device: torch.device | str | None = None) -> Job:
    """Reads a layout that Layout.save() wrote, as the place of this rank in it.

    A collective of all ranks. The layout has all ranks of the default group.

    Args:
        path: of the file, readable by every rank.
        device: of the model. None takes the accelerator, or the CPU on a machine without one.

    Raises:
        hetcomm.InvalidArgumentError: a file holds no layout, ranks hold unlike layouts, or the
            layout is for other ranks. All ranks raise it.
    """
    if not dist.is_initialized():
        raise _core.InvalidArgumentError(
            "expected a process group, got none; call torch.distributed.init_process_group() first"
        )
    found: list[Layout] = []

    def look() -> str:
        found.append(Layout.load(path))
        return hashlib.sha256(found[0].text().encode()).hexdigest()

    digests = agreement.gather(look)
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise _core.InvalidArgumentError(
            f"layout: expected the same on all ranks, but ranks {others} hold another one than "
            f"rank 0; give all ranks the file of rank 0 (on this rank: {path})"
        )
    layout = found[0]
    if layout.ranks != list(range(len(digests))):
        raise _core.InvalidArgumentError(
            f"layout {path}: expected the ranks 0 to {len(digests) - 1} of this job, got "
            f"{layout.ranks}; start {len(layout.ranks)} ranks, or plan for this job"
        )
    _check_context(layout)
    if device is None:
        there = torch.accelerator.is_available()
        device = torch.accelerator.current_accelerator() if there else None
    return Job(layout, torch.device(device or "cpu"))


def _check_context(layout: Layout) -> None:
    for r in range(layout.replicas):
        found = [stage.replicas[r].context for stage in layout.stages]
        if len(set(found)) > 1:
            raise _core.InvalidArgumentError(
                f"layout: expected one context degree in all stages of replica {r}, got {found}; "
                "activations of a sequence's part go to the next stage whole"
            )
