"""How the program that trains moves data and holds memory: the assumptions of a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostPath:
    """A receiver that fills a host buffer as long as the whole activation and copies it over.

    Rates are bytes per second of one thread: fresh: to fill memory that the kernel maps anew;
    reused: to fill memory that the process has; copy: pageable memory to the device. The C library
    maps buffers from `mapped` bytes on anew each time (glibc: DEFAULT_MMAP_THRESHOLD_MAX).
    """

    fresh: float
    reused: float
    copy: float
    mapped: int = 32 << 20

    def seconds(self, size: float) -> float:
        return size / (self.fresh if size >= self.mapped else self.reused) + size / self.copy


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the program does beside the passes themselves.

    blocking: a stage carries transfers out between passes, see simulate(). parts: each tensor rank
    sends its own part of an activation, and the receivers gather the parts; else each sends all.
    whole_parts: with unlike tensor degrees a rank sends its whole part to each of its partners, and
    has as many partners as if all stages had ranks as fine as the replica's widest stage; else
    each partner gets what it lacks.
    messages: of a transfer; all but one are short. barrier: all stages wait for the last one before
    the gradients' reduction. overlap_gradients: a layer's gradients leave during the last backward
    passes. gather_beside: partitioned weights of the next layer come during a layer's pass.
    host_path: of devices whose receivers use one.
    partitions: gradients and new weights move as hetcomm.partition() moves them, see divided.py;
    else a reduction is one piece, and new weights are part of it. clips: the gradients' norm joins
    all stages before the optimizer.
    overhead_bytes: of device memory beside tensors, by device, "" for others: context, kernels,
    communicators. flat_gradients: the reduction copies all gradients into one buffer.
    """

    blocking: bool = False
    parts: bool = False
    whole_parts: bool = False
    messages: int = 1
    barrier: bool = False
    overlap_gradients: bool = True
    gather_beside: bool = True
    partitions: bool = False
    clips: bool = False
    host_path: Mapping[str, HostPath] = field(default_factory=dict)
    # Assumed: a context and kernels take about 0.6 GB, five communicators about 0.3 GB each.
    overhead_bytes: Mapping[str, float] = field(default_factory=lambda: {"": 2e9})
    flat_gradients: bool = False

    def overhead(self, device: str) -> float:
        return self.overhead_bytes.get(device, self.overhead_bytes.get("", 0.0))


# What runs a layout: hetcomm.plan's schedule() and partition(). Sources, in this package:
# - run/schedule.py: sends do not wait for their receiver (not blocking): transports buffer them.
#   Gradients stay on their rank until the last backward pass of a chunk.
# - partitioning/passes.py, reductions.py: units sum over the gradients' level one after another,
#   while earlier units compute. steps.py: what is left of the sum follows at the optimizer's step.
# - partitioning/updates.py: new weights arrive before step() returns, or with overlap_optimizer
#   while the next forward pass computes. passes.py: partitioned weights come one unit ahead.
# - docs/planning-runtime.md: the trainer clips by the norm of all stages.
HETCOMM = Runtime(partitions=True, clips=True)
