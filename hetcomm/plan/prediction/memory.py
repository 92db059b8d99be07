"""The device memory of each rank in a training step, by what holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetcomm.plan.layout import Layout
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.network import Network, levels_of
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.prediction.schedules import most_held
from hetcomm.plan.profile import Profile


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one rank.

    working: gradients of intermediates in a backward pass. buffers: activations and gradients on
    their way, and a flat copy of the gradients where the runtime makes one. overhead: context,
    kernels and communicators, an assumption of the runtime.
    """

    weights: float
    gradients: float
    optimizer_states: float
    activations: float
    working: float
    buffers: float
    overhead: float

    @property
    def total(self) -> float:
        """Weights, gradients and states stay. The flat copy and the activations do not coincide."""
        states = self.weights + self.gradients + self.optimizer_states
        return states + self.activations + self.working + self.buffers + self.overhead


def stage_parameters(model: Model, layout: Layout, stage: int, tensor: int) -> int:
    """Parameters of a stage on one rank of a tensor group. A tied head on another stage than the
    embedding has a copy of the table."""
    chunks = layout.stages[stage].chunks
    found = 0
    for first, end in chunks:
        for kind, count in model.count(first, end).items():
            found += count * model.parameters(kind, tensor)
    if model.tied and chunks[-1][1] == model.layers and chunks[0][0] != 0:
        found += model.vocabulary * model.hidden // tensor
    return found


def chunk_kept(
    model: Model, layout: Layout, profile: Profile | None, stage: int, tensor: int, context: int
) -> list[float]:
    """Bytes that one micro-batch keeps on a rank for the backward pass, of each chunk."""
    found = []
    for first, end in layout.stages[stage].chunks:
        size = 0.0
        for kind, count in model.count(first, end).items():
            if layout.recompute and kind == "block":
                size += count * model.output_bytes()
            elif profile is not None:
                size += count * profile.kept_bytes(model, kind, tensor)
            else:
                size += count * model.kept_bytes(kind, tensor)
        found.append(size * layout.micro_batch / context)
    return found


def memory(
    model: Model,
    layout: Layout,
    network: Network,
    runtime: Runtime,
    devices: Sequence[str],
    profile: Profile | None = None,
) -> dict[int, Memory]:
    """The memory of each rank. devices: the kind of each rank's device.

    Replicas of equal degrees, devices, partitions and shares of the batch share the answer.
    """
    found: dict[int, Memory] = {}
    for s, stage in enumerate(layout.stages):
        known: dict[tuple[object, ...], Memory] = {}
        degrees = _degrees(layout, network, s)
        for replica, count in zip(stage.replicas, layout.micro_batches, strict=True):
            for rank in replica.ranks:
                key = (replica.tensor, replica.context, devices[rank], count, *degrees[rank])
                if key not in known:
                    known[key] = _of_rank(model, layout, runtime, profile, s, key)
                found[rank] = known[key]
    return found


def _degrees(layout: Layout, network: Network, stage: int) -> dict[int, tuple[int, int, int]]:
    """By rank the ranks that share its weights, gradients and optimizer states in parts."""
    found: dict[int, list[int]] = {}
    for level in (layout.weights, layout.gradients, layout.optimizer_states):
        of_level: dict[int, int] = {}
        for group in layout.data_groups(stage):
            for part in levels_of(network, group, level):
                for rank in part:
                    of_level[rank] = len(part)
        for rank, degree in of_level.items():
            found.setdefault(rank, []).append(degree)
    return {rank: (each[0], each[1], each[2]) for rank, each in found.items()}


def _of_rank(
    model: Model, layout: Layout, runtime: Runtime, profile: Profile | None, stage: int,
    key: tuple[object, ...],
) -> Memory:  # fmt: skip
    tensor, context, device, micro_batches, weights, gradients, states = key
    assert isinstance(tensor, int) and isinstance(context, int) and isinstance(device, str)
    assert isinstance(micro_batches, int)
    assert isinstance(weights, int) and isinstance(gradients, int) and isinstance(states, int)
    parameters = stage_parameters(model, layout, stage, tensor)
    sizes = chunk_kept(model, layout, profile, stage, tensor, context)
    chunks = layout.stages[stage].chunks
    kinds = {kind for first, end in chunks for kind in model.count(first, end)}
    samples = layout.micro_batch / context
    held = most_held(layout.schedule, len(layout.stages), micro_batches, stage, sizes)
    working = max(model.working_bytes(kind, tensor) for kind in kinds) * samples
    if layout.recompute and "block" in kinds:
        working += model.kept_bytes("block", tensor) * samples
    flat = parameters * model.gradient_bytes if runtime.flat_gradients else 0
    moving = 2 * model.output_bytes() * samples if len(layout.stages) > 1 else 0.0
    return Memory(
        weights=parameters * model.weight_bytes / weights,
        gradients=parameters * model.gradient_bytes / gradients,
        optimizer_states=parameters * model.state_bytes / states,
        activations=held,
        working=working,
        # The flat copy exists after the last backward pass, where the activations were before.
        buffers=moving + max(0.0, flat - held - working),
        overhead=runtime.overhead(device),
    )
