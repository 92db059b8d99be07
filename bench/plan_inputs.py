"""Profiles, models and clusters that no machine measured, for tests and studies of the planner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.plan.model import KINDS, Model
from hetcomm.plan.profile import Device, Profile, Row

GB = 1e9
# Data sheets, about: dense operations of 16 bits.
DEVICES = {
    "A100": Device(operations=312e12, bandwidth=1555 * GB, memory=40 * GB),
    "V100": Device(operations=125e12, bandwidth=900 * GB, memory=16 * GB),
    "H100": Device(operations=989e12, bandwidth=3350 * GB, memory=80 * GB),
}


def gpt_neo() -> Model:
    """GPT-Neo 2.7B, with weights of 16 bits and Adam's states of 32."""
    return Model(
        blocks=32,
        hidden=2560,
        heads=20,
        sequence=2048,
        vocabulary=50257,
        feed_forward=10240,
        positions=2048,
        flash=True,
        weight_bytes=2,
        gradient_bytes=2,
        activation_bytes=2,
        state_bytes=12,
    )


def small_model(blocks: int = 4) -> Model:
    return Model(
        blocks=blocks, hidden=512, heads=8, sequence=256, vocabulary=8000, feed_forward=2048
    )


def profile_of(
    model: Model,
    devices: Mapping[str, Device],
    tensors: Sequence[int] = (1, 2, 4),
    micro_batches: Sequence[int] = (1, 2, 4, 8),
) -> Profile:
    """Devices reach at most half of their peak, less with small micro-batches and large tensor
    degrees."""
    rows = []
    for name, device in devices.items():
        for layer in KINDS:
            for tensor in tensors:
                for size in micro_batches:
                    rate = device.operations * 0.5 * size / (size + 0.2)
                    rate *= 1 - 0.07 * math.log2(tensor)
                    moved = size * model.output_bytes() / device.bandwidth
                    forward = model.operations(layer) * size / tensor / rate + moved
                    rows.append(Row(name, layer, size, tensor, forward, 2 * forward + 1e-5))
    seconds = {
        (name, tensor): 24 / device.bandwidth
        for name, device in devices.items()
        for tensor in tensors
    }
    return Profile(model, devices, tuple(rows), seconds)


def cluster_of(
    counts: Mapping[str, int],
    ranks: int = 4,
    rate: int = 100_000_000_000,
    fabrics: Mapping[str, str] | None = None,
) -> Cluster:
    """So many ranks of each kind, on hosts of `ranks` ranks with one NIC."""
    hosts = []
    for kind, count in counts.items():
        fabric = (fabrics or {}).get(kind, "infiniband")
        nics = (Nic(rate, rate, fabric),)
        hosts += [
            Host(f"{kind}-{i}", min(ranks, count - first), nics, "nvidia", kind)
            for i, first in enumerate(range(0, count, ranks))
        ]
    return Cluster(tuple(hosts))
