"""Predicts published training speeds: one row of a family gives a device's rate, the others follow.

    .venv/bin/python bench/oracles/papers.py [ROWS.json]

The row whose bytes between hosts take the least time calibrates a family: it shows best what a
device computes. A paper that tells ratios alone calibrates nothing. There the rate is assumed, and
each row is a ratio of two predictions.

papers.json holds the facts, their sources, and what is assumed where a paper is silent. No paper
says how much of the collectives runs beside the passes. So each row has two predictions: with
collectives after the passes, and beside them. A family is calibrated for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetcomm.plan.layout import Layout, Replica, Stage
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.network import Curve, Curves, Groups, Place
from hetcomm.plan.prediction.predict import Prediction, predict
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.profile import Device, Profile, Row

ROWS = Path(__file__).parent / "papers.json"
DEVICE = "device"
# Seconds of a ring with the protocol for long messages: its start, a step over a network, a step
# over NVLink. NCCL chooses algorithms by these (src/graph/tuning.cc, commit 01afd20).
START, BETWEEN, INSIDE = 8.4e-6, 9.6e-6, 3.4e-6
MODULES = 4  # matrices of a block; assumed: DeepSpeed gathers them one by one
# Levels of weights, gradients and optimizer states; bytes of gathered weights and of reduced
# gradients, over those without a codec: ZeRO++ sends int8 between hosts and int4 for 16 bits.
# Three levels: arXiv 2501.04266.
METHODS = {
    "zero-3": (("cluster", "cluster", "cluster"), (1.0, 1.0)),
    "zero++": (("host", "cluster", "cluster"), (0.5, 0.25)),
    "three levels": (("island", "host", "cluster"), (0.5, 0.25)),
    "states": (("rank", "rank", "cluster"), (1.0, 1.0)),
}


@dataclass(eq=False)
class Quantised(Curves):
    """Curves whose collectives carry fewer bytes, and whose rings have latency.

    weights: of bytes between hosts. gradients: of all. calls: rings of each all_gather.
    """

    weights: float = 1.0
    gradients: float = 1.0
    calls: int = 1

    def collective(self, name: str, groups: Groups, size: int, codec: str = "none") -> float:
        if name != "all_gather":
            size = round(size * self.gradients)
        elif any(self._hosts(group) > 1 for group in groups):
            size = round(size * self.weights)
        late = max((self._latency(group) for group in groups), default=0.0)
        calls = self.calls if name == "all_gather" else 2 if name == "all_reduce" else 1
        return super().collective(name, groups, size, codec) + calls * late

    def _hosts(self, group: Sequence[int]) -> int:
        return len({self.places[rank].host for rank in group})

    def _latency(self, group: Sequence[int]) -> float:
        """Of a ring through all hosts, as NCCL counts."""
        between = self._hosts(group) - 1
        inside = len(group) - 1 - between
        return START + between * BETWEEN + inside * INSIDE if len(group) > 1 else 0.0


def layout_of(family: dict[str, Any], method: str) -> Layout:
    """Stages of equal blocks; the ranks of a stage are consecutive."""
    weights, gradients, states = METHODS[method][0]
    ranks = family["hosts"] * family["per_host"]
    count = family["stages"]
    layers = family["model"]["blocks"] + 2
    cuts = [s * layers // count for s in range(count + 1)]
    stages = tuple(
        Stage(
            ((cuts[s], cuts[s + 1]),),
            tuple(Replica((r,)) for r in range(s * ranks // count, (s + 1) * ranks // count)),
        )
        for s in range(count)
    )
    return Layout(
        stages, family["batch"], family["micro_batch"], recompute=True,
        weights=weights, gradients=gradients, optimizer_states=states,
    )  # fmt: skip


def flat(gigabytes: float) -> Curve:
    return Curve(1, 0, 0, gigabytes, gigabytes)


def place_of(family: dict[str, Any], rank: int) -> Place:
    host, inside = divmod(rank, family["per_host"])
    island = inside // family.get("per_island", family["per_host"])
    return Place(f"host {host}", DEVICE, island=f"island {island}")


def prediction_of(
    family: dict[str, Any], row: dict[str, Any], rate: float, beside: bool
) -> Prediction:
    """rate: operations per second of a device in a pass. A row may have hosts of its own."""
    family = family | row
    sizes = family["model"]
    model = Model(
        **sizes, feed_forward=4 * sizes["hidden"], weight_bytes=2, gradient_bytes=2,
        activation_bytes=2, state_bytes=12,
    )  # fmt: skip
    rows = []
    for kind in ("embedding", "block", "head"):
        seconds = max(model.operations(kind) * family["micro_batch"] / rate, 1e-6)
        rows.append(Row(DEVICE, kind, family["micro_batch"], 1, seconds, 2 * seconds))
    profile = Profile(model, {DEVICE: Device(1e18, 1e18, 1e12)}, tuple(rows), {(DEVICE, 1): 1e-15})
    ranks = family["hosts"] * family["per_host"]
    places = [place_of(family, rank) for rank in range(ranks)]
    key = ("", DEVICE)
    weights, gradients = METHODS[row["method"]][1]
    network = Quantised(
        places, {(key, key): [flat(family["GBps"])]}, {DEVICE: [flat(family["inside_GBps"])]},
        {DEVICE: [flat(family.get("island_GBps", family["inside_GBps"]))]},
        weights, gradients, MODULES if row["method"] != "states" else 1,
    )  # fmt: skip
    runtime = Runtime(blocking=not beside, gather_beside=beside, overlap_gradients=beside)
    layout = layout_of(family, row["method"])
    return predict(model, layout, profile, network, [DEVICE] * ranks, runtime)


def tflops(family: dict[str, Any], prediction: Prediction) -> float:
    """Per device, with the second forward pass of recompute, as the papers count."""
    sizes = family["model"]
    model = Model(**sizes, feed_forward=4 * sizes["hidden"])
    layout = prediction.layout
    work = model.step_operations(layout.batch, recompute=True)
    return work / prediction.seconds / len(layout.ranks) * 1e-12


def calibrated(family: dict[str, Any], beside: bool) -> float:
    """The rate at which the calibrating row comes out as published, by bisection; or the rate that
    is assumed."""
    if "assumed_tflops" in family:
        return float(family["assumed_tflops"]) * 1e12
    row = next(row for row in family["rows"] if row.get("calibrates"))
    low, high = row["tflops"] * 1e12, row["tflops"] * 1e13
    for _ in range(24):
        rate = (low * high) ** 0.5
        if tflops(family, prediction_of(family, row, rate, beside)) < row["tflops"]:
            low = rate
        else:
            high = rate
    return high


def errors_of(family: dict[str, Any], beside: bool) -> list[tuple[dict[str, Any], float, float]]:
    """Of each published speed that does not calibrate, and of each ratio: its row, the prediction,
    and the relative error."""
    rate = calibrated(family, beside)
    speeds = {
        row["name"]: tflops(family, prediction_of(family, row, rate, beside))
        for row in family["rows"]
    }
    rows = [row for row in family["rows"] if "tflops" in row and not row.get("calibrates")]
    found = [(row, speeds[row["name"]]) for row in rows]
    found += [(row, speeds[row["of"]] / speeds[row["over"]]) for row in family.get("ratios", ())]
    return [(row, each, each / published_of(row) - 1) for row, each in found]


def published_of(row: dict[str, Any]) -> float:
    return float(row.get("tflops", row.get("ratio")))


def digits_of(row: dict[str, Any]) -> int:
    return 1 if "tflops" in row else 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rows", nargs="?", type=Path, default=ROWS)
    families = json.loads(parser.parse_args().rows.read_text())
    print(f"{'family':14} {'row':22} {'published':>9}  {'after':>6} {'error':>7}  "
          f"{'beside':>6} {'error':>7}")  # fmt: skip
    errors: dict[str, list[float]] = {}
    for family in families:
        after, beside = (errors_of(family, each) for each in (False, True))
        for (row, one, of_one), (_, two, of_two) in zip(after, beside, strict=True):
            what, digits = ("speeds" if "tflops" in row else "ratios"), digits_of(row)
            published = published_of(row)
            print(f"{family['family']:14} {row['name']:22} {published:9g}  {one:6.{digits}f} "
                  f"{of_one:+7.1%}  {two:6.{digits}f} {of_two:+7.1%}")  # fmt: skip
            errors.setdefault(f"{what}, after", []).append(abs(of_one))
            errors.setdefault(f"{what}, beside", []).append(abs(of_two))
    for name, each in errors.items():
        print(f"{name}: median {statistics.median(each):.1%}, worst {max(each):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
