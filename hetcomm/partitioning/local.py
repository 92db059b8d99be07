"""This rank's values of a parameter: all, or its shard of a tensor-parallel DTensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hetcomm import _core
from hetcomm.partitioning.pieces import Box


def values(tensor: torch.Tensor) -> torch.Tensor:
    """The values on this rank, without autograd. They share the tensor's memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor.detach()


def box(parameter: torch.Tensor) -> Box:
    """Where this rank's values lie in the whole parameter."""
    if not isinstance(parameter, DTensor):
        return (0,) * parameter.ndim, tuple(parameter.shape)
    (chunk,) = parameter.__create_chunk_list__()
    return tuple(chunk.offsets), tuple(chunk.sizes)


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether the ranks of a tensor group hold different values."""
    placements: Any = getattr(parameter, "placements", None)
    return placements is not None and bool(placements[0].is_shard())


def division(parameter: torch.Tensor) -> str:
    """How the ranks of a tensor group divide the parameter, for comparisons between ranks."""
    placements: Any = getattr(parameter, "placements", None)
    return repr(placements[0]) if is_sharded(parameter) else "whole"


def show(parameter: torch.Tensor, own: torch.Tensor) -> None:
    """Lets a parameter have these values on this rank, in their memory and of their dtype."""
    if not isinstance(parameter, DTensor):
        parameter.data = own
        return
    if parameter.dtype != own.dtype:
        cast: Any = divided_as(parameter, own)
        parameter.data = cast
        parameter._spec = cast._spec
    parameter._local_tensor = own


def whole(parameter: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """A tensor of which each rank has its values. A collective of the tensor group for shards."""
    if not isinstance(parameter, DTensor) or not is_sharded(parameter):
        return own
    found: Any = divided_as(parameter, own)
    full: torch.Tensor = found.full_tensor()
    return full


def divided_as(parameter: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """A tensor of the parameter's kind with these values on this rank, in their memory."""
    if not isinstance(parameter, DTensor):
        return own
    return DTensor.from_local(
        own,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient of this rank's values. A collective of a tensor group, if the gradient is a sum
    that its ranks still have to add up."""
    found = parameter.grad
    if isinstance(found, DTensor) and isinstance(parameter, DTensor):
        found = found.redistribute(placements=parameter.placements)
    return None if found is None else values(found)


def part(tensor: torch.Tensor, at: Box) -> torch.Tensor:
    """The values at a place, of a whole tensor or of a DTensor that has them on this rank.

    Raises hetcomm.InvalidArgumentError for a DTensor that is divided in another way.
    """
    if isinstance(tensor, DTensor):
        if box(tensor) != at:
            raise _core.InvalidArgumentError(
                f"expected a whole tensor, or one with {at} on this rank (offsets, sizes), got "
                f"{box(tensor)}; give full_tensor()"
            )
        return values(tensor)
    offsets, sizes = at
    return tensor[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]


def check(name: str, parameter: torch.Tensor) -> None:
    """Raises InvalidArgumentError for a DTensor that is no parameter of tensor parallelism."""
    if not isinstance(parameter, DTensor):
        return
    mesh, placements = parameter.device_mesh, parameter.placements
    plain = mesh.ndim == 1 and type(placements[0]).__name__ in ("Shard", "Replicate")
    if not plain:
        raise _core.InvalidArgumentError(
            f"{name}: expected a plain parameter, or a DTensor of a tensor mesh of one dimension, "
            f"sharded or replicated; got placements {placements} over a mesh of {mesh.ndim} "
            "dimensions; give partition() the module after parallelize_module(), without "
            "fully_shard()"
        )


def mesh_of(parameters: Iterable[torch.Tensor]) -> DeviceMesh | None:
    """The tensor mesh of all DTensors among the parameters; None if there is none.

    Raises hetcomm.InvalidArgumentError for several meshes.
    """
    meshes: list[Any] = []
    for parameter in parameters:
        if isinstance(parameter, DTensor) and parameter.device_mesh not in meshes:
            meshes.append(parameter.device_mesh)
    if len(meshes) > 1:
        raise _core.InvalidArgumentError(
            f"module: expected one tensor mesh of all DTensors, got {meshes}; parallelize all "
            "layers over one mesh"
        )
    return meshes[0] if meshes else None
