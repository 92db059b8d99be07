"""Checks of partition()'s arguments. All ranks raise the same error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hetcomm import _core
from hetcomm.partitioning import agreement, levels, local, tensors, trial
from hetcomm.partitioning.collectives import check_codecs, is_lossy
from hetcomm.partitioning.guards import is_guarded
from hetcomm.partitioning.shards import check_membership
from hetcomm.partitioning.units import Choice, cut


def _check_updates(module: nn.Module, dtype: torch.dtype | None, codec: str | None) -> None:
    """Refuses a lossy codec of weights that are the optimizer's own: it would lose updates."""
    if not is_lossy(codec):
        return
    kept = {dtype or p.dtype for p in module.parameters() if p.requires_grad}
    if any(each.itemsize >= 4 for each in kept):
        raise _core.InvalidArgumentError(
            f'codecs: expected a lossless codec of updates of float32 weights, got "{codec}", '
            "which would round the optimizer's own weights; pass dtype=torch.bfloat16, or no codec"
        )


def _check_feedback(feedback: bool, codecs: dict[str, str | None], bucket: int) -> None:
    """Refuses feedback of codecs that lose nothing, and of buckets of several units."""
    if feedback and not any(is_lossy(codecs.get(each)) for each in ("gradients", "updates")):
        raise _core.InvalidArgumentError(
            f"feedback: expected a lossy codec of gradients or updates, got {codecs}; name one, or "
            "leave feedback out"
        )
    if feedback and bucket:
        raise _core.InvalidArgumentError(
            f"bucket: expected 0 with feedback, got {bucket}; each unit has residuals of its own, "
            "so leave bucket or feedback out"
        )


def agree(
    given: dict[str, Any], look: Callable[[], Any], equal: Any, group: Any
) -> list[levels.Groups]:
    """The groups of each level, of ranks in `group`. A collective of the group's ranks.

    given: levels by name. look: checks this rank's arguments, and describes the module. equal: what
    must be the same on all ranks.
    """

    def describe() -> tuple[Any, ...]:
        described = {what: levels.describe(what, level, group) for what, level in given.items()}
        return described, levels.facts(described.values()), look(), equal

    every = agreement.gather(describe, group)
    described, facts, modules, settings = zip(*every, strict=True)
    agreement.require_equal(
        "dtype, codecs, feedback, prefetch, sync, bucket, overlap and the names of tied",
        list(settings),
        "pass equal ones",
    )
    for rank, (module, first) in enumerate(zip(modules, [modules[0]] * len(modules), strict=True)):
        if module != first:
            differing = next((a, b) for a, b in _pairs(first, module) if a != b)
            raise _core.InvalidArgumentError(
                "module: expected equal parameters, units and groups on all ranks; got "
                f"{differing[0]} on rank 0 and {differing[1]} on rank {rank}"
            )
    found = {}
    for what in given:
        try:
            found[what] = levels.resolve([each[what] for each in described], facts)
        except _core.InvalidArgumentError as error:
            raise _core.InvalidArgumentError(f"{what}: {error}") from None
    levels.check(found, given)
    return list(found.values())


def _pairs(left: list[Any], right: list[Any]) -> list[tuple[Any, Any]]:
    size = max(len(left), len(right))
    return list(
        zip(left + [None] * (size - len(left)), right + [None] * (size - len(right)), strict=True)
    )


def check_module(
    module: nn.Module,
    optimizer: Optimizer,
    units: Choice,
    dtype: torch.dtype | None,
    codecs: dict[str, str | None],
    feedback: bool,
    bucket: int,
    group: Any,
    tied: Mapping[str, nn.Parameter],
    tensor_group: Any,
) -> list[Any]:
    """Raises InvalidArgumentError for what cannot be partitioned; else describes the module."""
    if not isinstance(module, nn.Module) or not isinstance(optimizer, Optimizer):
        raise _core.InvalidArgumentError(
            f"expected an nn.Module and an Optimizer, got {type(module).__name__} and "
            f"{type(optimizer).__name__}"
        )
    for name, each in module.named_modules():
        if is_guarded(each) or isinstance(each, DistributedDataParallel):
            raise _core.InvalidArgumentError(
                f"module: expected plain modules, but {name or 'the module'} is partitioned or "
                "wrapped already; give partition() the inner module, once"
            )
    if dtype is not None and not dtype.is_floating_point:
        raise _core.InvalidArgumentError(
            f"dtype: expected a floating-point dtype such as torch.bfloat16, or None; got {dtype}"
        )
    check_codecs(codecs, group)
    if isinstance(bucket, bool) or not isinstance(bucket, int) or bucket < 0:
        raise _core.InvalidArgumentError(
            f"bucket: expected a number of elements of at least 0, got {bucket!r}"
        )
    _check_feedback(feedback, codecs, bucket)
    _check_updates(module, dtype, codecs.get("updates"))
    named = dict(module.named_parameters())
    _check_parameters(named)
    tensors.group_of(module, tensor_group)
    own = {id(parameter) for parameter in named.values()}
    if strange := [name for name, parameter in tied.items() if id(parameter) not in own]:
        raise _core.InvalidArgumentError(
            f"tied: expected parameters of the module, but {strange[:3]} "
            f"{'are' if len(strange) > 1 else 'is'} none; give the module's own parameters"
        )
    trainable = {id(p): name for name, p in named.items() if p.requires_grad and p.numel()}
    frozen = {id(p) for p in named.values() if id(p) not in trainable}
    check_membership(optimizer, trainable, frozen)
    trial.check(optimizer, next(iter(named.values())).device)
    group_of = {
        id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]
    }
    ties = {id(parameter): name for name, parameter in tied.items()}
    return [
        (
            names,
            tuple(p.shape),
            local.box(p),
            str(p.dtype),
            p.requires_grad,
            unit.name,
            group_of.get(id(p)),
            ties.get(id(p)),
        )
        for unit in cut(module, units)
        for p, names in unit.parameters
    ]


def _check_parameters(named: dict[str, nn.Parameter]) -> None:
    if not any(p.requires_grad for p in named.values()):
        raise _core.InvalidArgumentError("module: expected trainable parameters, found none")
    device = next(iter(named.values())).device
    for name, parameter in named.items():
        local.check(name, parameter)
        if type(parameter) not in (nn.Parameter, DTensor):
            raise _core.InvalidArgumentError(
                f"{name}: expected an nn.Parameter, got {type(parameter).__name__}; give "
                "partition() a plain, initialised module"
            )
        if parameter.device != device or device.type == "meta":
            raise _core.InvalidArgumentError(
                f"{name}: expected all parameters on one device with memory, got "
                f"{parameter.device} and {device}; move the module first"
            )
        if parameter.is_complex():
            raise _core.InvalidArgumentError(
                f"{name}: expected a real dtype, got {parameter.dtype}; use torch.view_as_real"
            )
