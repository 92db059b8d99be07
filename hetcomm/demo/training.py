"""The record of a training run, and the comparison of two that differ in backend or codec."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

WARM_UP = 3
"""First steps left out of the medians, because they open connections and allocate memory."""


@dataclass(frozen=True)
class Training:
    """One run: loss, seconds, and bytes sent over the network by all hosts, of each step.

    network_bytes: None if hosts share one network, which has no counters by host. codec: of
    gradients between hosts; "" for that of the group.
    """

    layout: str
    backend: str
    losses: list[float]
    seconds: list[float]
    network_bytes: list[int] | None
    parameters: int
    codec: str = ""

    @property
    def name(self) -> str:
        """ "hetcomm", or "hetcomm, int8"."""
        return ", ".join(filter(None, (self.backend, self.codec)))

    @property
    def step_seconds(self) -> float:
        return median(without_warm_up(self.seconds))

    @property
    def step_bytes(self) -> float | None:
        return None if self.network_bytes is None else median(without_warm_up(self.network_bytes))


def without_warm_up(values: Sequence[float]) -> Sequence[float]:
    """The values after the warm-up; all values of a short run."""
    return values[WARM_UP:] if len(values) > 2 * WARM_UP else values


def read_lines(metrics: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that may grow, or not exist yet."""
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").split("\n")[:-1]]


def read_training(
    metrics: Path, layout: str, backend: str, steps: int, codec: str = ""
) -> Training:
    """The training of trainer.py's file: a record per step and a summary. Raises ValueError if one
    is missing."""
    lines = read_lines(metrics)
    if len(lines) != steps + 1:
        raise ValueError(
            f"{layout} on {backend}: expected {steps} steps and a summary in {metrics}, got "
            f"{len(lines)} lines; the training stopped early, see its output"
        )
    *records, summary = lines
    return Training(
        layout=layout,
        backend=backend,
        losses=[record["loss"] for record in records],
        seconds=[record["seconds"] for record in records],
        network_bytes=summary["network_bytes"],
        parameters=summary["parameters"],
        codec=codec,
    )


@dataclass(frozen=True)
class Comparison:
    """Two runs of one layout, with the same number of steps."""

    baseline: Training
    candidate: Training
    tolerance: float

    @property
    def layout(self) -> str:
        return self.baseline.layout

    @property
    def speed_up(self) -> float:
        return self.baseline.step_seconds / self.candidate.step_seconds

    @property
    def differences(self) -> list[float]:
        """The absolute difference of the losses of each step; infinite for NaN."""
        pairs = zip(self.baseline.losses, self.candidate.losses, strict=True)
        gaps = [abs(left - right) for left, right in pairs]
        return [math.inf if math.isnan(gap) else gap for gap in gaps]

    @property
    def largest_difference(self) -> float:
        return max(self.differences)

    @property
    def agrees(self) -> bool:
        return self.largest_difference <= self.tolerance

    def disagreement(self) -> str:
        """Describes the first step with a larger difference than rounding explains."""
        step = next(i for i, gap in enumerate(self.differences) if gap > self.tolerance)
        return (
            f"{self.layout}: from step {step} the loss on {self.candidate.name} is "
            f"{self.candidate.losses[step]!r}, on {self.baseline.name} "
            f"{self.baseline.losses[step]!r}: expected a difference of at most "
            f"{self.tolerance:g}, got {self.differences[step]:g} (largest "
            f"{self.largest_difference:g}); data and weights are the same, so one backend "
            "communicates wrong values"
        )
