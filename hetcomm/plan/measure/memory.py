"""Bytes: what layers keep for the backward pass, what a device has, what a measurement needs."""

from __future__ import annotations

import torch
from torch.autograd.graph import saved_tensors_hooks

from hetcomm import _core
from hetcomm.plan.measure.layers import Layers, Make, plain
from hetcomm.plan.model import Model

MARGIN = 1.2  # of a measurement's needs: allocators round, and operations have workspaces


def kept_bytes(model: Model, kind: str, device: torch.device, make: Make = plain) -> float:
    """Bytes that a layer keeps of one sample for its backward pass: what two samples keep beyond
    one. A head also keeps the logits, which trainers hold until then."""
    one, two = (_kept(Layers(model, kind, samples, device, 1, make)) for samples in (1, 2))
    return float(two - one)


def _kept(layers: Layers) -> int:
    """Bytes of all storages that autograd saves in a forward pass, each once."""
    storages: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor  # autograd holds the storage, so no other one gets the address

    with saved_tensors_hooks(count, lambda tensor: tensor):
        layers.forward()
    if layers.kind == "head":
        count(layers.output)
    return sum(storages.values())


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


def needed(model: Model, kind: str, samples: int, count: int = 1) -> float:
    """Bytes of so many layers with a micro-batch, about."""
    states = model.parameters(kind) * (model.weight_bytes + model.gradient_bytes)
    passes = 3 * model.output_bytes() + model.working_bytes(kind)
    return MARGIN * (count * states + samples * (count * model.kept_bytes(kind) + passes))
