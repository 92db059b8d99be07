"""Bytes of a partition: predicted by the formula, and held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hetcomm.partitioning.partition import Partition


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank. optimizer: master weights and states."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def predict(
    parameters: int,
    weights: int = 1,
    gradients: int = 1,
    optimizer: int = 1,
    *,
    weight_bytes: int = 2,
    gradient_bytes: int = 2,
    optimizer_bytes: int = 12,
) -> Memory:
    """The bytes on a rank: 2P/p_w + 2P/p_g + 12P/p_o by default (arXiv 2501.04266).

    Args:
        parameters: trainable parameters of the module, P.
        weights, gradients, optimizer: ranks of each level: p_w, p_g and p_o.
        weight_bytes, gradient_bytes: of an element; 2 for bfloat16.
        optimizer_bytes: of an element; 12 for float32 master weights and two moments of Adam. It
            is 8 if the weights are float32, because the optimizer changes the weights themselves.
    """
    return Memory(
        weight_bytes * parameters / weights,
        gradient_bytes * parameters / gradients,
        optimizer_bytes * parameters / optimizer,
    )


def held(partition: Partition) -> Memory:
    """The bytes that this rank's shards hold, with padding. Gathered weights do not count."""
    flats = [flat for unit in partition.units for flat in unit.flats]
    weights = _bytes(flat.weights for flat in flats)
    gradients = _bytes(flat.gradient for flat in flats if flat.gradient is not None)
    master = _bytes(flat.master for flat in flats if not flat.aliased)
    states = _bytes(
        value
        for state in partition.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim
    )
    return Memory(weights, gradients, master + states)


def padding(partition: Partition) -> int:
    """Elements of the whole job's trainable buffers that hold no parameter."""
    flats = [flat for unit in partition.units for flat in unit.trainable]
    return sum(flat.length - flat.used for flat in flats)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
