"""The partition of a rank's chunks, as their layout says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from hetcomm import _core
from hetcomm.partitioning import agreement
from hetcomm.partitioning.partition import Partition
from hetcomm.partitioning.partition import partition as partition_module
from hetcomm.plan.run import tied
from hetcomm.plan.run.chunks import check_chunks

if TYPE_CHECKING:
    from hetcomm.plan.run.job import Job


def partition(
    chunks: Sequence[nn.Module], optimizer: Optimizer, job: Job, **settings: Any
) -> Partition:
    """Partitions the chunks of split() over their data group: hetcomm.partition() by the layout.

    A collective of all ranks. Takes the layout's levels of weights, gradients and optimizer states,
    its codec for gradients, and its overlap_optimizer as `overlap`. Levels are those of this rank's
    data group: "cluster" means all of its ranks. Gradients are means over this group, of replicas
    and context ranks. The norm of clip_grad_norm_() is that of all stages and tensor ranks.
    Checkpoints have the names of the whole model, so each stage saves its own part of one
    checkpoint. Stages that hold a tied parameter sum its gradients at the optimizer's step.

    Args:
        chunks: of this rank, on their device.
        optimizer: over the parameters of all chunks.
        settings: other arguments of hetcomm.partition(), such as dtype.

    Raises:
        hetcomm.InvalidArgumentError: `chunks` is not the list of split() on a rank; all ranks
            raise it. Or another argument or the layout does not fit, such as unlike tensor degrees
            in the replicas of a stage; all ranks of the group raise it.
    """
    layout = job.layout
    if layout.schedule == "zero_bubble" and layout.weights != "rank":
        raise _core.InvalidArgumentError(
            'layout.weights: expected "rank" with the schedule zero_bubble, got '
            f'"{layout.weights}"; the second half of a backward pass uses weights that are freed '
            "before; choose another level or schedule"
        )
    if layout.weights != "rank" and len(set(layout.micro_batches)) > 1:
        raise _core.InvalidArgumentError(
            'layout.weights: expected "rank" with unequal shares of the batch, got '
            f'"{layout.weights}"; ranks gather divided weights for each micro-batch together; '
            "choose another level or equal shares"
        )
    tensor = layout.stages[job.stage].replicas[job.replica].tensor
    agreement.gather(lambda: check_chunks(chunks, layout, "units"))
    units = {id(unit) for chunk in chunks for unit in chunk.units()}  # type: ignore[operator]
    codecs = None if layout.codec == "auto" else {"gradients": layout.codec}
    return partition_module(
        _joined(list(chunks)),
        optimizer,
        layout.weights,
        layout.gradients,
        layout.optimizer_states,
        **{
            "units": lambda module: id(module) in units,
            "codecs": codecs,
            "overlap": layout.overlap_optimizer,
            "group": job.data_group,
            "norm_group": job.model_group if dist.get_world_size(job.model_group) > 1 else None,
            "tied": tied.parameters(chunks) if len(layout.stages) > 1 else None,
            "tensor_group": job.tensor_group if tensor > 1 else None,
            **settings,
        },
    )


def _joined(modules: list[nn.Module]) -> nn.Module:
    """One module with the parts of all, by their names. Parts without a state may be left out."""
    kept = [module for module in modules if module.state_dict()] or modules[:1]
    if all(module is kept[0] for module in kept):
        return kept[0]
    joined = nn.Module()
    for name in dict.fromkeys(name for module in kept for name, _ in module.named_children()):
        joined.add_module(
            name, _joined([m.get_submodule(name) for m in kept if name in m._modules])
        )
    return joined
