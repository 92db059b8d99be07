"""The demo's last part: the same training, each island on GPUs of another vendor (emulated)."""

import dataclasses
from itertools import cycle

from hetcomm._vendors import vendors
from hetcomm.demo.training import Comparison, Training
from hetcomm.emulate import Cluster

STEPS = 20
VENDORS = tuple(vendors())[:2]


def with_vendors(cluster: Cluster) -> Cluster:
    """The same hosts, with emulated GPUs of one vendor and another in turn."""
    hosts = tuple(
        dataclasses.replace(host, vendor=vendor)
        for host, vendor in zip(cluster.hosts, cycle(VENDORS), strict=False)
    )
    return dataclasses.replace(cluster, hosts=hosts)


def first_steps(training: Training, steps: int) -> Training:
    """The beginning of a run, as if it had ended there."""
    return dataclasses.replace(
        training,
        losses=training.losses[:steps],
        seconds=training.seconds[:steps],
        network_bytes=training.network_bytes and training.network_bytes[:steps],
    )


def summary(comparison: Comparison) -> str:
    """One line: what trained on what, and whether the losses are those of the baseline."""
    steps = len(comparison.candidate.losses)
    return (
        f"{' and '.join(VENDORS)} islands (emulated GPUs) trained together for {steps} steps; "
        f"largest difference of the loss from {comparison.baseline.backend} on CPUs: "
        f"{comparison.largest_difference:.1e}. Speeds of emulated GPUs mean nothing."
    )
