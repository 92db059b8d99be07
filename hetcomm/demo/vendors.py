"""The demo's last part: the same training, with emulated GPUs of another vendor in each island."""

import dataclasses
from itertools import cycle

from hetcomm._vendors import vendors
from hetcomm.demo.training import Comparison, Training
from hetcomm.emulate import Cluster

STEPS = 20
VENDORS = tuple(vendors())[:2]


def with_vendors(cluster: Cluster) -> Cluster:
    """The same hosts, with emulated GPUs of two vendors in turn."""
    hosts = tuple(
        dataclasses.replace(host, vendor=vendor)
        for host, vendor in zip(cluster.hosts, cycle(VENDORS), strict=False)
    )
    return dataclasses.replace(cluster, hosts=hosts)


def first_steps(training: Training, steps: int) -> Training:
    """The first steps of a run, as a run."""
    return dataclasses.replace(
        training,
        losses=training.losses[:steps],
        seconds=training.seconds[:steps],
        network_bytes=training.network_bytes and training.network_bytes[:steps],
    )


def summary(comparison: Comparison) -> str:
    """One line: vendors, steps, and the largest difference from the baseline."""
    steps = len(comparison.candidate.losses)
    return (
        f"{' and '.join(VENDORS)} islands (emulated GPUs) trained together for {steps} steps; "
        f"largest difference of the loss from {comparison.baseline.backend} on CPUs: "
        f"{comparison.largest_difference:.1e}. Speeds of emulated GPUs mean nothing."
    )
