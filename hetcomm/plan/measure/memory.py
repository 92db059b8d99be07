"""Bytes: what layers keep for the backward pass, what a device has, what a measurement needs."""

from __future__ import annotations

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor, wait_tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hetcomm import _core
from hetcomm.plan.measure.layers import Divide, Layers, Make, divide, plain
from hetcomm.plan.model import Model

MARGIN = 1.2  # of a measurement's needs: allocators round, and operations have workspaces


def kept_bytes(
    model: Model,
    kind: str,
    device: torch.device,
    make: Make = plain,
    mesh: DeviceMesh | None = None,
    divide: Divide = divide,
) -> float:
    """Bytes that a layer keeps of one sample for its backward pass: what two samples keep beyond
    one. A head also keeps the logits, which trainers hold until then. mesh: see Layers."""
    one, two = (
        _kept(Layers(model, kind, samples, device, 1, make, mesh, divide)) for samples in (1, 2)
    )
    return float(two - one)


def _kept(layers: Layers) -> int:
    """Bytes of all storages that autograd saves in a forward pass, each once."""
    storages: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = _own(tensor).untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor  # autograd holds the storage, so no other one gets the address

    with saved_tensors_hooks(count, lambda tensor: tensor):
        layers.forward()
    if layers.kind == "head":
        count(layers.output)
    return sum(storages.values())


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor on this rank."""
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return wait_tensor(tensor) if isinstance(tensor, AsyncCollectiveTensor) else tensor


def device_memory(device: torch.device, ranks: int) -> float:
    """Bytes of a rank's device. Host memory: what is available, over the ranks of the host."""
    if device.type == "cpu":
        return _core.available_memory() / ranks
    return float(torch.cuda.mem_get_info(device)[1])


def free_memory(device: torch.device, ranks: int) -> float:
    """Bytes that a measurement may take now. ranks: that measure at once on a host."""
    if device.type == "cpu":
        return _core.available_memory() / ranks
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + cached)


def needed(model: Model, kind: str, samples: int, count: int = 1, tensor: int = 1) -> float:
    """Bytes of so many layers with a micro-batch on one of `tensor` ranks, about."""
    states = model.parameters(kind, tensor) * (model.weight_bytes + model.gradient_bytes)
    passes = 3 * model.output_bytes() + model.working_bytes(kind)
    kept = model.kept_bytes(kind, tensor if kind == "block" else 1)
    return MARGIN * (count * states + samples * (count * kept + passes))
