"""Tensor parallelism of a rank's chunks: torch's styles, applied to their layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from hetcomm import _core
from hetcomm.plan.run import families

if TYPE_CHECKING:
    from hetcomm.plan.run.job import Job

Tensor = Mapping[str, ParallelStyle] | Callable[[nn.Module, DeviceMesh], Any] | None
"""See split()."""


def chosen(model: Any, tensor: Tensor, job: Job) -> Tensor:
    """What divides the layers: `tensor`, or the styles of the model's family.

    Raises hetcomm.InvalidArgumentError if the layout has tensor degrees above 1 and nothing says
    how to divide the model, or if a pattern fits no module of the model.
    """
    degrees = {replica.tensor for stage in job.layout.stages for replica in stage.replicas}
    if degrees == {1}:
        return None
    if tensor is None:
        if isinstance(model, list):
            raise _core.InvalidArgumentError(
                "tensor: expected how to divide layers, because the layout has tensor degrees up "
                f"to {max(degrees)}, got none; pass torch's styles by names of modules, a function "
                "of a layer and a mesh, or {} if the ranks of a tensor group compute whole layers"
            )
        return families.tensor_plan(model, degrees)
    if isinstance(tensor, Mapping):
        names = list(_names(model))
        for pattern in tensor:
            if not any(fits(name, pattern) for name in names):
                raise _core.InvalidArgumentError(
                    f"tensor: expected patterns of the model's modules, such as {names[1:4]}, got "
                    f"{pattern!r}; correct the name"
                )
    return tensor


def _names(model: Any) -> Iterator[str]:
    if not isinstance(model, list):
        yield from (name for name, _ in model.named_modules())
        return
    for index, layer in enumerate(model):
        yield from (f"{index}.{name}".rstrip(".") for name, _ in layer.named_modules())


def fits(name: str, pattern: str) -> bool:
    """Whether a module's name fits a pattern, of which `*` stands for one part between dots."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def apply(chunks: Sequence[Any], tensor: Tensor, mesh: DeviceMesh) -> None:
    """Divides the layers of this rank's chunks, in place. A collective of the tensor group.

    Raises hetcomm.InvalidArgumentError if modules shared a parameter and now have it in unlike
    parts.
    """
    shared = _shared(chunks)
    for chunk in chunks:
        if isinstance(tensor, Mapping):
            for name, module in list(chunk.named_modules()):
                style = next((tensor[each] for each in tensor if fits(name, each)), None)
                if style is not None:
                    parallelize_module(module, mesh, style)
        elif tensor is not None:
            for layer in chunk.units():
                tensor(layer, mesh)
    for parameter, places in shared:
        _tie_again(parameter, places)


Places = list[tuple[nn.Module, str]]


def _shared(chunks: Sequence[nn.Module]) -> list[tuple[nn.Parameter, Places]]:
    """The parameters that several modules of this rank have, with these."""
    found: dict[int, tuple[nn.Parameter, Places]] = {}
    seen = set()
    for chunk in chunks:
        for module in chunk.modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            for name, parameter in module.named_parameters(recurse=False):
                found.setdefault(id(parameter), (parameter, []))[1].append((module, name))
    return [each for each in found.values() if len(each[1]) > 1]


def _tie_again(parameter: nn.Parameter, places: Places) -> None:
    """Each module got a part of its own. The first one's serves for all."""
    parts = [module.get_parameter(name) for module, name in places]
    kinds = {repr(p.placements) if isinstance(p, DTensor) else "whole" for p in parts}
    if len(kinds) > 1:
        raise _core.InvalidArgumentError(
            f"tensor: expected one way to divide a parameter that {len(places)} modules share "
            f"({type(places[0][0]).__name__}, {type(places[1][0]).__name__}), got "
            f"{sorted(kinds)}; divide an embedding by RowwiseParallel and its head by "
            "ColwiseParallel, or untie them"
        )
    for module, name in places[1:]:
        module.register_parameter(name, parts[0])
