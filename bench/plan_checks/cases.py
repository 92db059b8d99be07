"""The clusters and models of the check."""

from __future__ import annotations

from dataclasses import dataclass

from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.emulate.cluster import parse_rate
from hetcomm.plan.model import Model
from plan_checks.layers import Speed

SLOWER = {"fast": 1.0, "mid": 1.5, "slow": 2.0, "old": 3.0}  # by kind of device


@dataclass(frozen=True)
class Job:
    """A model, its speed on the fastest kind, and the samples of a step for each rank. few: only
    few layouts are measured."""

    model: Model
    speed: Speed
    samples: int = 2
    few: bool = False

    def speed_of(self, kind: str) -> Speed:
        speed = self.speed
        return Speed(speed.sample, speed.launch, speed.head, SLOWER[kind])


def _model(blocks: int, hidden: int, sequence: int, vocabulary: int) -> Model:
    return Model(blocks, hidden, 4, sequence, vocabulary, 4 * hidden)


JOBS = {
    # Weights of 4.9 MB, 32 KB of activations a sample.
    "wide": Job(_model(6, 128, 64, 256), Speed(0.0025)),
    # 1.3 MB, and 128 KB a sample.
    "long": Job(_model(6, 64, 512, 256), Speed(0.0025)),
    # Unequal: tables of 1 MB in embedding and head, a head worth three blocks; more blocks.
    "heavy": Job(_model(8, 64, 128, 4096), Speed(0.0022, head=3.0)),
    # Long passes: what a step takes beyond these is small.
    "mixed": Job(_model(6, 64, 64, 256), Speed(0.02), samples=6, few=True),
}


def _cluster(*hosts: tuple[int, str, str], fabrics: tuple[str, ...] = ()) -> Cluster:
    """hosts: (ranks, kind of device, rate)."""
    made = []
    for index, (ranks, kind, rate) in enumerate(hosts):
        bits = parse_rate(rate)
        fabric = fabrics[index] if fabrics else "ethernet"
        nics = (Nic(bits, bits, fabric),)
        made.append(Host(f"h{index}", ranks, nics, device=kind))
    return Cluster(tuple(made))


# Unequal in ranks, rates or speeds; 4 and 8 ranks.
CLUSTERS = {
    "2+2": _cluster((2, "fast", "500mbit"), (2, "slow", "500mbit")),
    "3+1": _cluster((3, "fast", "200mbit"), (1, "mid", "200mbit")),
    "1+3": _cluster((1, "fast", "1gbit"), (3, "old", "1gbit")),
    "2+1+1": _cluster((2, "fast", "300mbit"), (1, "mid", "300mbit"), (1, "slow", "100mbit")),
    "2+2 slow link": _cluster((2, "fast", "100mbit"), (2, "mid", "100mbit")),
    "1+1+1+1": _cluster(
        (1, "fast", "1gbit"), (1, "fast", "1gbit"), (1, "slow", "200mbit"), (1, "slow", "200mbit")
    ),
    "4+4": _cluster((4, "fast", "500mbit"), (4, "slow", "500mbit")),
    "6+2": _cluster((6, "fast", "300mbit"), (2, "mid", "300mbit")),
    "2+6": _cluster((2, "fast", "1gbit"), (6, "old", "500mbit")),
    "2+2+2+2": _cluster(
        (2, "fast", "1gbit"), (2, "fast", "1gbit"), (2, "slow", "300mbit"), (2, "slow", "300mbit")
    ),
    "4+2+2": _cluster((4, "fast", "300mbit"), (2, "mid", "300mbit"), (2, "slow", "150mbit")),
    "3+5": _cluster((3, "fast", "200mbit"), (5, "slow", "200mbit")),
    "4+4 slow link": _cluster((4, "fast", "100mbit"), (4, "mid", "100mbit")),
}

THREE = ("wide", "long", "heavy")
MIXED = "2+2+2+2"  # two fast and two slow islands
CHECKS = {name: (*THREE, "mixed") if name == MIXED else THREE for name in CLUSTERS}
QUICK = {"2+2": THREE[:1]}
