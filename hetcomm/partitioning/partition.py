"""hetcomm.partition(): a module and its optimizer become shards on three levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from hetcomm import _core
from hetcomm.codecs import Feedback
from hetcomm.partitioning import agreement, local, states
from hetcomm.partitioning import grid as grids
from hetcomm.partitioning.arguments import agree, check_module
from hetcomm.partitioning.collectives import Encoding, gather, wait
from hetcomm.partitioning.feedback import Residuals
from hetcomm.partitioning.guards import guard
from hetcomm.partitioning.levels import Level
from hetcomm.partitioning.memory import Memory, held, predicted
from hetcomm.partitioning.passes import Passes
from hetcomm.partitioning.shards import Shards
from hetcomm.partitioning.steps import Steps
from hetcomm.partitioning.tensors import TensorGroup, group_of
from hetcomm.partitioning.ties import Ties, tie
from hetcomm.partitioning.units import Choice, cut
from hetcomm.partitioning.updates import Updates


class Partition:
    """A partitioned module. hetcomm.partition() makes it.

    The module, its optimizer and schedulers of the optimizer are used as before. All ranks run the
    same units in the same order. The methods are collectives of all ranks, except no_sync(),
    state_dict(), memory() and predicted_memory().
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        grid: grids.Grid,
        units: Choice,
        dtype: torch.dtype | None,
        codecs: dict[str, str | None],
        prefetch: bool,
        sync: bool,
        feedback: bool,
        bucket: int,
        overlap: bool,
        norm_group: dist.ProcessGroup | None,
        tied: Mapping[str, nn.Parameter] | None,
        tensor_group: dist.ProcessGroup | None,
    ) -> None:
        self.module, self.optimizer, self.grid = module, optimizer, grid
        self.units = cut(module, units)
        names = {id(parameter): name for name, parameter in (tied or {}).items()}
        for unit in self.units:
            unit.make_flats(grid, dtype, sync, names)
        flats = [flat for unit in self.units for flat in unit.trainable]
        self._whole = False
        sums = Feedback() if feedback else None
        gradients = Encoding(codecs.get("gradients"), sums)
        self._passes = Passes(self.units, dtype, codecs.get("weights"), gradients, prefetch, bucket)
        self._shards = Shards(optimizer, flats, grid)
        self.trained = self._shards.trained
        self._updates = Updates(flats, codecs.get("updates"), feedback, overlap)
        self._tensors = TensorGroup(tensor_group, flats, grid, sync)
        ties = Ties({}) if tied is None else tie(flats, grid, self._tensors, sync)
        if (feedback and not sync) or (ties and sync):
            self._updates.spread(exactly=True)  # ranks hold the weights of the masters
        self._steps = Steps(
            self._shards,
            self._passes,
            grid,
            gradients,
            self._updates,
            norm_group,
            ties,
            self._tensors,
        )
        self.residuals: Residuals | None = None
        if sums is not None:
            units_of = [[f.name, f.length, *(e.names for e in f.entries)] for f in flats]
            sizes = [along.size for along in grid.dimensions]
            layout = (sizes, units_of, str(dtype), sorted(codecs.items()))
            self.residuals = Residuals(sums, self._updates, layout, grid.group)
        guard(module, optimizer, self._steps.zero_grad, lambda: self._whole)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales the mean gradients so that their norm over all parameters is at most `max_norm`.

        Call it between backward() and step(), in place of torch.nn.utils.clip_grad_norm_. Returns
        the norm before, a float32 scalar, equal on all ranks. norm_type: p of the norm; infinity
        for the largest absolute value.

        Raises:
            hetcomm.InvalidArgumentError: a negative norm, or ranks ran different units.
        """
        return self._steps.clip(float(max_norm), float(norm_type))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside keep gradients in the parameters, whole, without communication.

        The next backward pass outside reduces the sum of its units, and step() all others.
        """
        before, self._passes.reduces = self._passes.reduces, False
        try:
            yield
        finally:
            self._passes.reduces = before

    def state_dict(self) -> dict[str, Any]:
        """{"model": ..., "optimizer": ...}, to be saved by torch.distributed.checkpoint.

        The checkpoint has whole tensors: the master weights and the optimizer's states. It loads
        into any other partition, and into the plain module and optimizer. To load, take this
        dictionary, fill it with torch.distributed.checkpoint.load(), and give it to
        load_state_dict(). Weights share this partition's memory.

        With feedback there is "feedback", too: copies of this rank's residuals. They load into the
        same layout of levels and ranks only. For others, give torch.distributed.checkpoint.load()
        the planner hetcomm.partitioning.LoadPlanner().
        """
        state: dict[str, Any] = {
            "model": states.model_state(self.module, self.units),
            "optimizer": states.optimizer_state(self.optimizer, self._shards),
        }
        if self.residuals is not None:
            self._updates.arrive()
            state["feedback"] = self.residuals.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes weights, and states if there are any: of state_dict(), or whole tensors by name.

        Every rank gives a state. Parameters without a saved state have none afterwards. With
        feedback, residuals of this layout come back with their bits. Otherwise they start at zero,
        and rank 0 warns.

        Raises:
            hetcomm.InvalidArgumentError: a rank's state has no "model", or its names, shapes or
                groups differ from the partition's. All ranks raise it. Some weights and states may
                be new then: load a right state before you go on.
        """
        self._updates.arrive()

        def take() -> None:
            states.check(state_dict)
            states.load_model(self.module, self.units, state_dict["model"])
            if "optimizer" in state_dict:
                saved = state_dict["optimizer"]
                states.load_optimizer(self.module, self.optimizer, self._shards, saved)

        agreement.gather(take, self.grid.group)
        self._passes.free()
        if self.residuals is None:
            self._updates.spread()
        else:
            self.residuals.load_state_dict(state_dict.get("feedback", {}))

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The whole module's state on rank 0, in host memory; an empty dictionary on other ranks.

        With tensor parallelism, this is rank 0 of the group and of the tensor group. Weights are
        the optimizer's master weights, float32. One unit at a time is gathered.
        """
        full: dict[str, torch.Tensor] = {}
        keep = dist.get_rank(self.grid.group) == self._tensors.rank == 0
        for name, value in states.model_state(self.module, self.units).items():
            if keep and not isinstance(value, states.Piece):
                full[name] = value.to("cpu", copy=True)
        for unit in self.units:
            for flat in unit.flats:
                whole = flat.master if flat.trainable else flat.weights
                for along in reversed(self.grid.dimensions[: 3 if flat.trainable else 1]):
                    out = whole.new_empty(len(whole) * along.size)
                    wait(gather(out, whole, along, None))
                    whole = out
                for entry in flat.entries:
                    own = whole[entry.start : entry.end].view(entry.local_shape)
                    value = local.whole(entry.parameter, own)  # a collective of tensor ranks
                    if keep:
                        full.update(dict.fromkeys(entry.names, value.to("cpu", copy=True)))
        return full

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """All weights are whole inside, in the dtype of computation.

        Do not change them: with weights="rank" a change stays on this rank, otherwise it is lost.
        Tensor-parallel weights are whole as DTensors. module.state_dict() works inside.
        """
        for unit in self.units:
            unit.gather(None)
        for unit in self.units:
            unit.use()
        self._whole = True
        try:
            yield
        finally:
            self._whole = False
            self._passes.free()

    def memory(self) -> Memory:
        """The bytes that this rank's shards hold now, with padding.

        Gathered units and the buffers of collectives are not among them.
        """
        return held(self)

    def predicted_memory(self) -> Memory:
        """What memory() has after the first step, by the formula, without padding."""
        return predicted(self)


def partition(
    module: nn.Module,
    optimizer: Optimizer,
    weights: Level = "rank",
    gradients: Level = "rank",
    optimizer_states: Level = "cluster",
    *,
    units: Choice = None,
    dtype: torch.dtype | None = None,
    codecs: dict[str, str | None] | None = None,
    feedback: bool = False,
    prefetch: bool = True,
    sync: bool = True,
    bucket: int = 0,
    overlap: bool = False,
    timeout: timedelta | None = None,
    group: dist.ProcessGroup | None = None,
    norm_group: dist.ProcessGroup | None = None,
    tied: Mapping[str, nn.Parameter] | None = None,
    tensor_group: dist.ProcessGroup | None = None,
) -> Partition:
    """Partitions a module and its optimizer, in place, over all ranks of a group.

    A collective of all ranks of the group. With p_w, p_g and p_o ranks in the levels, a
    rank holds 2P/p_w + 2P/p_g + 12P/p_o bytes for P parameters, bfloat16 and Adam (arXiv
    2501.04266). A level is "rank" (each rank holds all), "island", "host" or "cluster" (all ranks
    share), or a DeviceMesh of one dimension, or a ProcessGroup. Each level lies inside the next.

    Args:
        module: on its device, equal on all ranks, and not yet wrapped by DDP or FSDP.
        optimizer: over module.parameters(). It must treat each element alone, as Adam does.
        weights, gradients, optimizer_states: the level of each.
        units: what is gathered together: a list of module classes, or a predicate of a module.
            None takes each child of the outermost nn.ModuleList and nn.Sequential.
        dtype: of gathered weights and gradients; inputs of units are cast to it. None keeps the
            parameters' own. The optimizer always works in float32 or more.
        codecs: by traffic ("weights", "gradients", "updates"), the name of a hetcomm.codec().
        feedback: adds to each step's gradients, and to its new weights, what a lossy codec lost of
            the step before.
        prefetch: gathers the next unit while one computes.
        sync: rank 0 gives its parameters and buffers to all ranks. False takes them as they are.
        bucket: elements. A reduction waits for so many gradients, of several units, or for the end
            of the backward pass. 0 reduces each unit by itself.
        overlap: new weights travel during the next forward pass, and each unit waits for its own.
            Outside of their unit, parameters may then have values of neither step. With gradients
            and optimizer_states of "cluster", this is the overlapped distributed optimizer of
            Holmes (arXiv 2312.03549). Buckets have 500,000,000 elements there.
        timeout: of each collective; None takes that of the default group.
        group: the ranks that share the module; "cluster" then means these. None takes all ranks.
        norm_group: ranks that hold other parameters of the same model, such as the other stages of
            a pipeline. clip_grad_norm_() then takes the norm over the parameters of all.
        tied: parameters that modules of other groups hold too, such as the embeddings of a
            pipeline's first and last stage, each by a name that is equal in all groups. Mean
            gradients of all holders are added up, and one group gives its values at the start, if
            `sync`. The optimizer's states have this name in checkpoints. A mapping, also an empty
            one, makes partition() a collective of all ranks.
        tensor_group: ranks that hold the other shards of the module's tensor-parallel parameters,
            and copies of the rest. None takes the mesh of parallelize_module(). The group's ranks
            call the partition's methods together. norm_group then has them too; None is the
            tensor group.

    Returns:
        The partition, for clipping, checkpoints and the memory report.

    Raises:
        hetcomm.InvalidArgumentError: an argument does not fit. All ranks raise it.
    """
    if not dist.is_initialized():
        raise _core.InvalidArgumentError(
            "expected a process group, got none; call torch.distributed.init_process_group() first"
        )
    group = group or dist.group.WORLD
    given = {"weights": weights, "gradients": gradients, "optimizer_states": optimizer_states}
    chosen = dict(codecs or {})
    levels = agree(
        given,
        lambda: check_module(
            module,
            optimizer,
            units,
            dtype,
            chosen,
            feedback,
            bucket,
            group,
            tied or {},
            tensor_group,
        ),
        (dtype, chosen, feedback, prefetch, sync, bucket, overlap, sorted(tied or {})),
        group,
    )
    device = next(module.parameters()).device
    grid = grids.build(levels, device, timeout, group)
    if sync:
        for buffer in module.buffers():
            _broadcast(buffer, grid)
        for parameter in module.parameters():
            if not parameter.is_floating_point():
                _broadcast(parameter.data, grid)
    return Partition(
        module,
        optimizer,
        grid,
        units,
        dtype,
        chosen,
        prefetch,
        sync,
        feedback,
        bucket,
        overlap,
        norm_group,
        tied,
        group_of(module, tensor_group),
    )


def _broadcast(tensor: torch.Tensor, grid: grids.Grid) -> None:
    whole = tensor.contiguous()
    grid.broadcast(whole.view(torch.uint8) if whole.dtype == torch.bool else whole)
    tensor.copy_(whole)
