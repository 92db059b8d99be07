"""What happens around optimizer.step(): gradients come together, new weights spread."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hetcomm import _core
from hetcomm.partitioning import collectives
from hetcomm.partitioning.collectives import Encoding
from hetcomm.partitioning.grid import GRADIENTS, OPTIMIZER, Grid
from hetcomm.partitioning.passes import Passes
from hetcomm.partitioning.shards import Shards
from hetcomm.partitioning.tensors import TensorGroup
from hetcomm.partitioning.ties import Ties
from hetcomm.partitioning.updates import Updates


class Steps:
    """Hooks of an optimizer, and gradient clipping. Gradients are means over all ranks."""

    def __init__(
        self,
        shards: Shards,
        passes: Passes,
        grid: Grid,
        encoding: Encoding,
        updates: Updates,
        norm_group: Any,
        ties: Ties,
        tensors: TensorGroup,
    ) -> None:
        """encoding: of gradients. norm_group: see partition()."""
        self._shards, self._passes, self._grid = shards, passes, grid
        self._encoding, self._updates = encoding, updates
        self._norm_group, self._ties = norm_group or tensors.group, ties
        self._tensors = tensors
        self._means: list[torch.Tensor] | None = None  # by flat, until the step
        shards.optimizer.register_step_pre_hook(self._before)
        shards.optimizer.register_step_post_hook(self._after)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if any(each is not None for each in (*args[1:], *kwargs.values())):
            raise _core.InvalidArgumentError(
                "optimizer.step: expected no closure, got one; call loss.backward() before step()"
            )
        self._shards.check()
        self.finish_gradients()
        self._updates.arrive()

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._means is not None:
            self._passes.free()
            self._updates.spread()
        self.drop_means()

    def finish_gradients(self) -> list[torch.Tensor]:
        """The mean gradient of this rank's optimizer shard, float32, of each flat buffer.

        The optimizer's shards get it as `.grad`. Empty if there was no backward pass. A collective
        of all ranks. Raises InvalidArgumentError if ranks ran different units.
        """
        self._passes.finish()
        if self._means is None or self._passes.changed:
            self._check_history()
            self._passes.changed = False
            if self._passes.reduced:
                self._means = self._reduce()
                by_flat = dict(zip(map(id, self._shards.flats), self._means, strict=True))
                for shard in self._shards:
                    shard.tensor.grad = by_flat[id(shard.flat)][shard.range_in_master()]
        return self._means or []

    def _check_history(self) -> None:
        """Collectives of ranks that ran different units have joined unlike data."""
        device = self._shards.flats[0].weights.device
        mine = self._passes.history
        ends = torch.tensor([mine, -mine], dtype=torch.int64, device=device)
        dist.all_reduce(ends, dist.ReduceOp.MAX, group=self._grid.group)
        self._passes.history = 0
        if ends[0] != -ends[1]:
            raise _core.InvalidArgumentError(
                "expected all ranks to run the same units in the same order, but they differ; the "
                "gradients are wrong. Make control flow equal on all ranks, or give partition() "
                "units that contain the difference"
            )

    def _reduce(self) -> list[torch.Tensor]:
        """Sums along the optimizer dimension and the replicas, all flat buffers at once."""
        parts, works, sent = [], [], []
        for flat in self._shards.flats:
            shard = flat.gradient
            if shard is None:
                shard = flat.weights.new_zeros(flat.length // self._grid.parts(GRADIENTS))
            part = shard
            if self._grid.optimizer.size > 1:
                part = shard.new_empty(flat.length // self._grid.parts(OPTIMIZER))
                along, key = self._grid.optimizer, f"{flat.name} optimizer"
                works.append(collectives.scatter_sum(part, shard, along, self._encoding, key))
            sent.append(shard)
            parts.append(part)
        for work in works:
            work.wait()
        if self._grid.replicas.size > 1:
            # `gradient` keeps this rank's sum, because later backward passes add to it.
            parts = [p.clone() if p is s else p for p, s in zip(parts, sent, strict=True)]
            along = self._grid.replicas
            works = [
                collectives.all_sum(part, along, self._encoding, f"{flat.name} replicas")
                for part, flat in zip(parts, self._shards.flats, strict=True)
            ]
            for work in works:
                work.wait()
        means = [
            part.to(flat.master.dtype, copy=True).div_(self._grid.ranks)
            for part, flat in zip(parts, self._shards.flats, strict=True)
        ]
        self._ties.add_up(self._shards.flats, means, self._encoding)
        self._tensors.average(self._shards.flats, means)
        return means

    def drop_means(self) -> None:
        self._means = None
        for shard in self._shards:
            shard.tensor.grad = None

    def zero_grad(self) -> None:
        """Drops all gradients. A later step() without a backward pass changes nothing."""
        self._passes.forget()
        self.drop_means()

    def clip(self, max_norm: float, norm_type: float) -> torch.Tensor:
        """Scales the gradients to a global norm of at most `max_norm`. See Partition."""
        if not (max_norm >= 0 and norm_type > 0):
            raise _core.InvalidArgumentError(
                "clip_grad_norm_: expected max_norm of at least 0 and norm_type above 0, got "
                f"{max_norm} and {norm_type}"
            )
        means = self.finish_gradients()
        device = self._shards.flats[0].weights.device
        norms = [torch.linalg.vector_norm(m, norm_type, dtype=torch.float64) for m in means]
        if norms and self._norm_group is not None:
            # Modules and tensor ranks hold equal parameters, so each parameter counts once.
            for each in (self._ties, self._tensors):
                copies = each.copies(self._shards.flats)
                norms = [n * c ** (-1 / norm_type) for n, c in zip(norms, copies, strict=True)]
        total = torch.zeros((), dtype=torch.float64, device=device)
        if norms:
            total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        largest = norm_type == float("inf")
        operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        if not largest:
            # Replicas hold equal shards, so each of them counts once.
            total = total**norm_type / self._grid.replicas.size
        dist.all_reduce(total, operation, group=self._grid.group)
        if self._norm_group is not None:
            dist.all_reduce(total, operation, group=self._norm_group)
        if not largest:
            total = total ** (1 / norm_type)
        scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for mean in means:
            mean *= scale.to(mean.dtype)
        return total.to(torch.float32)
