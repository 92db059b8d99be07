"""The device memory of each rank in a training step, by what holds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hetcomm.plan.layout import Layout, Replica, groups_of
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


def kept_bytes(
    model: Model, profile: Profile | None, recompute: bool, kind: str, tensor: int
) -> float:
    """Bytes that one sample keeps of a layer on a rank for the backward pass."""
    if recompute and kind == "block":
        return model.output_bytes()
    if profile is not None:
        return profile.kept_bytes(model, kind, tensor)
    return model.kept_bytes(kind, tensor)


def chunk_kept(
    model: Model, layout: Layout, profile: Profile | None, stage: int, tensor: int, context: int
) -> list[float]:
    """Bytes that one micro-batch keeps on a rank for the backward pass, of each chunk."""
    found = []
    for first, end in layout.stages[stage].chunks:
        size = sum(
            count * kept_bytes(model, profile, layout.recompute, kind, tensor)
            for kind, count in model.count(first, end).items()
        )
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
        levels = (layout.weights, layout.gradients, layout.optimizer_states)
        degrees = _degrees(network, stage.replicas, levels)
        for replica, count in zip(stage.replicas, layout.micro_batches, strict=True):
            for rank in replica.ranks:
                key = (replica.tensor, replica.context, devices[rank], count, *degrees[rank])
                if key not in known:
                    known[key] = _of_rank(model, layout, runtime, profile, s, key)
                found[rank] = known[key]
    return found


@lru_cache(maxsize=64)
def _degrees(
    network: Network, replicas: tuple[Replica, ...], levels: tuple[str, ...]
) -> dict[int, tuple[int, ...]]:
    """By rank the ranks that share its weights, gradients and optimizer states in parts. levels: of
    these."""
    of_level = {
        level: {
            rank: len(part)
            for group in groups_of(replicas)
            for part in levels_of(network, group, level)
            for rank in part
        }
        for level in set(levels)
    }
    ranks = (rank for replica in replicas for rank in replica.ranks)
    return {rank: tuple(of_level[level][rank] for level in levels) for rank in ranks}


def _of_rank(
    model: Model, layout: Layout, runtime: Runtime, profile: Profile | None, stage: int,
    key: tuple[object, ...],
) -> Memory:  # fmt: skip
    tensor, context, device, micro_batches, *shares = key
    assert isinstance(tensor, int) and isinstance(context, int) and isinstance(device, str)
    assert isinstance(micro_batches, int)
    sizes = chunk_kept(model, layout, profile, stage, tensor, context)
    chunks = layout.stages[stage].chunks
    held = most_held(layout.schedule, len(layout.stages), micro_batches, stage, sizes)
    return rank_memory(
        model,
        runtime,
        device,
        kinds={kind for first, end in chunks for kind in model.count(first, end)},
        parameters=stage_parameters(model, layout, stage, tensor),
        tensor=tensor,
        samples=layout.micro_batch / context,
        recompute=layout.recompute,
        held=held,
        shares=tuple(shares),  # type: ignore[arg-type]
        pipelined=len(layout.stages) > 1,
    )


def rank_memory(
    model: Model,
    runtime: Runtime,
    device: str,
    *,
    kinds: Iterable[str],
    parameters: int,
    tensor: int,
    samples: float,
    recompute: bool,
    held: float,
    shares: tuple[int, int, int],
    pipelined: bool,
) -> Memory:
    """Of a rank of a stage. kinds: of its layers. samples: of a pass on this rank. held: bytes of
    activations. shares: the ranks that share weights, gradients and optimizer states in parts."""
    working = max(model.working_bytes(kind, tensor) for kind in kinds) * samples
    if recompute and "block" in kinds:
        working += model.kept_bytes("block", tensor) * samples
    flat = parameters * model.gradient_bytes if runtime.flat_gradients else 0
    moving = 2 * model.output_bytes() * samples if pipelined else 0.0
    weights, gradients, states = shares
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
