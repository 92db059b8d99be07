"""Bytes of a partition: predicted by the formula, and held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hetcomm.partitioning.grid import GRADIENTS, OPTIMIZER, WEIGHTS
from hetcomm.partitioning.trial import fresh_state

if TYPE_CHECKING:
    from hetcomm.partitioning.partition import Partition


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank. optimizer: master weights and states. feedback: residuals of codecs."""

    weights: float
    gradients: float
    optimizer: float
    feedback: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.feedback


def predict_memory(
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


def predicted(partition: Partition) -> Memory:
    """The formula for this partition, its dtypes and its optimizer, without padding."""
    grid = partition.grid
    weights = gradients = optimizer = 0.0
    for flat in (flat for unit in partition.units for flat in unit.flats):
        size = flat.used * flat.dtype.itemsize
        weights += size / grid.parts(WEIGHTS)
        if flat.trainable:
            gradients += size / grid.parts(GRADIENTS)
            own = 0 if flat.aliased else flat.master.element_size()
            optimizer += flat.used * own / grid.parts(OPTIMIZER)
    for group, trained in zip(partition.optimizer.param_groups, partition.trained, strict=True):
        of_dtype: dict[torch.dtype, int] = {}
        for flat, entry in trained:
            dtype = flat.master.dtype
            of_dtype[dtype] = of_dtype.get(dtype, 0) + entry.elements
        for dtype, elements in of_dtype.items():
            device = trained[0][0].master.device
            state = fresh_state(partition.optimizer, group, 1, dtype, device)
            optimizer += elements * _bytes(_moments(state)) / grid.parts(OPTIMIZER)
    return Memory(weights, gradients, optimizer)


def _moments(state: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors with an element for each of the parameter's."""
    return (v for v in state.values() if isinstance(v, torch.Tensor) and v.ndim)


def held(partition: Partition) -> Memory:
    """The bytes that this rank's shards hold, with padding. Gathered weights do not count."""
    flats = [flat for unit in partition.units for flat in unit.flats]
    weights = _bytes(flat.weights for flat in flats)
    gradients = _bytes(flat.gradient for flat in flats if flat.gradient is not None)
    master = _bytes(flat.master for flat in flats if not flat.aliased)
    states = sum(_bytes(_moments(state)) for state in partition.optimizer.state.values())
    feedback = 0 if partition.residuals is None else partition.residuals.bytes()
    return Memory(weights, gradients, master + states, feedback)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
