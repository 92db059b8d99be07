"""Predicts the measured training steps of Sailor's authors, and prints the errors.

    .venv/bin/python bench/oracles/sailor.py [POINTS.json ...]

The data beside this file, in sailor/, is theirs; see sailor/README.md. Nothing here is fitted to
the points: constants are from data sheets, from the source of their program, or measured elsewhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hetcomm.plan.layout import Layout, Replica, Stage
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.network import Curve, Curves, Place
from hetcomm.plan.prediction.predict import Prediction, predict
from hetcomm.plan.prediction.runtime import HostPath, Runtime
from hetcomm.plan.profile import Device, Profile, Row

DATA = Path(__file__).parent / "sailor"
ZONE = "us-central1-a"  # of points that name none
PADDED = 128  # Megatron pads the vocabulary to a multiple of this

# Data sheets of NVIDIA: multiplications in TF32 where the device has it, else in float32; HBM.
DEVICES = {
    "V100-16": Device(15.7e12, 0.900e12, 16 << 30),
    "A100-40": Device(156e12, 1.555e12, 40 << 30),
    "A100-80": Device(156e12, 2.039e12, 80 << 30),
    "GH-96": Device(494.7e12, 4.0e12, 96 << 30),
    "RTX-2080": Device(14.2e12, 0.616e12, 11 << 30),
    "Titan-RTX": Device(16.3e12, 0.672e12, 24 << 30),
    "RTX-3090": Device(71e12, 0.936e12, 24 << 30),
}
# A receiver fills a host tensor as long as the activation and copies it to the device: deepspeed/
# utils.py, reconstruct_tensor(). x86: torch.zeros on one thread of a Xeon, best of 6 runs, with 67
# and with 16 MB; pageable copies over PCIe 3 reach half of the 12 GB/s of pinned ones. Grace: the
# kernel and then the process write each page, at the about 30 GB/s of one Neoverse V2 core; C2C.
X86 = HostPath(fresh=2.7e9, reused=7.7e9, copy=6e9)
GRACE = HostPath(fresh=15e9, reused=30e9, copy=200e9)
RUNTIME = Runtime(
    blocking=True,  # deepspeed/p2p.py: send and recv in the order of the stream
    parts=True,  # deepspeed/pipe_engine.py: PartitionedTensor
    whole_parts=True,  # deepspeed/topology.py, get_all_groups(); send_with_group_idx()
    messages=2,  # a description goes before each part
    barrier=True,  # deepspeed/pipe_engine.py: a barrier before ReduceGrads
    overlap_gradients=False,
    host_path={name: GRACE if name == "GH-96" else X86 for name in DEVICES},
    # Their own constants for memory outside of torch: runtime_simulator.py, megatron_mem.
    overhead_bytes={"": 3.0e9, "GH-96": 5.06e9},
    flat_gradients=True,  # deepspeed/engine.py: allreduce_bucket
)


class Headless(Model):
    """A model that ends with a norm, whose output the loss takes for logits: their GPT-Neo.

    megatron/model/gpt_neo_model.py has no output projection and ties nothing.
    """

    __slots__ = ()

    def parameters(self, kind: str, tensor: int = 1) -> int:
        return 2 * self.hidden if kind == "head" else super().parameters(kind, tensor)

    def operations(self, kind: str) -> float:
        """Of a head: an addition and a multiplication by a weight of the norm."""
        return 2.0 * self.sequence * self.hidden if kind == "head" else super().operations(kind)

    def working_bytes(self, kind: str, tensor: int = 1) -> float:
        if kind == "head":
            return 2.0 * self.output_bytes()
        return super().working_bytes(kind, tensor)


def padded(vocabulary: int) -> int:
    return -(-vocabulary // PADDED) * PADDED


@cache
def model_of(name: str) -> Model:
    """Without dropout: they train OPT and GPT-Neo with Megatron's modules and keep no masks."""
    table = json.loads((DATA / "models.json").read_text())[name]
    projects = table.get("head_matmul_in_profile", True)
    return (Model if projects else Headless)(
        blocks=table["transformer_layers"],
        hidden=table["hidden"],
        heads=table["heads"],
        sequence=table["seq"],
        vocabulary=padded(table["vocab"]),
        feed_forward=4 * table["hidden"],
        positions=table["seq"],
        tied=projects and table["head_tied"],
    )


@cache
def profile_of(name: str) -> Profile:
    """The repository's rows. profiles_alt.json replaces times that were set by hand."""
    models = json.loads((DATA / "models.json").read_text())
    rows = json.loads((DATA / "profiles.json").read_text())[name]
    measured = json.loads((DATA / "profiles_alt.json").read_text()).get(name, {})
    model = model_of(name)
    found: list[Row] = []
    optimizer: dict[tuple[str, int], list[float]] = {}
    for gpu, sizes in rows.items():
        for size, degrees in sizes.items():
            for degree, entry in degrees.items():
                entry = measured.get(gpu, {}).get(size, {}).get(degree, entry)
                embedding, _, block, head, step = entry
                b, t = int(size), int(degree)
                for kind, times in (("embedding", embedding), ("block", block), ("head", head)):
                    found.append(Row(gpu, kind, b, t, *times))
                # The optimizer's row is that of a model with two blocks.
                two = sum(model.parameters(kind, t) for kind in ("embedding", "head"))
                two += 2 * model.parameters("block", t)
                optimizer.setdefault((gpu, t), []).append(step / two)
    kept: dict[tuple[str, int], float] = {}
    for degree, layers in models[name]["mem"].items():
        t = int(degree)
        for kind, layer in (("embedding", 0), ("block", 2), ("head", 3)):
            kept[kind, t] = 4.0 * layers[layer][2]
    return Profile(
        model,
        DEVICES,
        tuple(found),
        {key: statistics.median(each) for key, each in optimizer.items()},
        kept,
    )


@cache
def curves() -> tuple[dict[Any, list[Curve]], dict[str, list[Curve]]]:
    table = json.loads((DATA / "network.json").read_text())
    between: dict[Any, list[Curve]] = {}
    for zone, gpu, peer_zone, peer, n, *fit in table["inter"]:
        key = ((zone, gpu), (peer_zone, peer))
        between.setdefault(key, []).append(Curve(n, *fit))
    inside = {
        gpu: [Curve(int(n) // 2, *fit) for n, fit in curves.items()]
        for gpu, curves in table["intra"].items()
    }
    return between, inside


@dataclass(frozen=True)
class Point:
    """A measured run: its layout, the place of each rank, seconds, and bytes (0: unknown)."""

    name: str
    model: str
    layout: Layout
    places: tuple[Place, ...]
    seconds: float
    memory: float
    flag: str


def point_of(table: dict[str, Any]) -> Point:
    """Each replica of each stage has a node of its own."""
    stages = table.get("stages")
    if stages is None:
        stages = [[[table["gpu"], table["tp"]]] * table["dp"]] * table["pp"]
    places: list[Place] = []
    found: list[Stage] = []
    first = 0
    for s, (replicas, count) in enumerate(zip(stages, table["layers"], strict=True)):
        made = []
        for r, (gpu, tensor, *zone) in enumerate(replicas):
            ranks = tuple(range(len(places), len(places) + tensor))
            places += [Place(f"stage {s} replica {r}", gpu, zone[0] if zone else ZONE)] * tensor
            made.append(Replica(ranks))
        found.append(Stage(((first, first + count),), tuple(made)))
        first += count
    layout = Layout(tuple(found), batch=table["gbs"], micro_batch=table["mbs"])
    name, flag = table["id"], table.get("flag", "")
    memory = table.get("mem") or 0
    return Point(name, table["model"], layout, tuple(places), table["t"], memory, flag)


def prediction_of(point: Point) -> Prediction:
    between, inside = curves()
    network = Curves(point.places, between, inside)
    devices = [place.device for place in point.places]
    model, profile = model_of(point.model), profile_of(point.model)
    return predict(model, point.layout, profile, network, devices, RUNTIME)


def errors_of(path: Path) -> list[tuple[Point, Prediction, float, float | None]]:
    """Of each point the relative error of time, and of memory where it was measured."""
    found = []
    for table in json.loads(path.read_text()):
        point = point_of(table)
        predicted = prediction_of(point)
        time_error = predicted.seconds / point.seconds - 1
        memory_error = predicted.most_memory / point.memory - 1 if point.memory else None
        found.append((point, predicted, time_error, memory_error))
    return found


def summary(errors: list[float]) -> str:
    sizes = sorted(abs(each) for each in errors)
    return (
        f"median {statistics.median(sizes):.1%}, mean {statistics.mean(sizes):.1%}, "
        f"worst {sizes[-1]:.1%} of {len(sizes)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("points", nargs="*", type=Path, default=sorted(DATA.glob("points_*.json")))
    parser.add_argument("--parts", action="store_true", help="print where the time goes")
    for path in (arguments := parser.parse_args()).points:
        start = time.perf_counter()
        found = errors_of(path)
        took = (time.perf_counter() - start) / max(1, len(found))
        print(f"{path.name}: {took * 1e3:.1f} ms for each prediction")
        print(f"{'point':22} {'measured':>9} {'predicted':>9} {'error':>7}  {'memory':>8} "
              f"{'predicted':>9} {'error':>7}")  # fmt: skip
        for point, predicted, of_time, of_memory in found:
            memory = f"{'-':>8} {'-':>9} {'-':>7}"
            if of_memory is not None:
                memory = (f"{point.memory / 1e9:6.2f}GB {predicted.most_memory / 1e9:7.2f}GB "
                          f"{of_memory:+7.1%}")  # fmt: skip
            print(f"{point.name:22} {point.seconds:8.4f}s {predicted.seconds:8.4f}s "
                  f"{of_time:+7.1%}  {memory} {point.flag}")  # fmt: skip
            if arguments.parts:
                for (stage, replica), parts in predicted.parts.items():
                    if replica == 0:
                        text = ", ".join(f"{k} {v * 1e3:.1f}" for k, v in parts.items() if v > 1e-5)
                        print(f"    stage {stage}, ms: {text}")
        print(f"time:   {summary([each[2] for each in found])}")
        if memory_errors := [each[3] for each in found if each[3] is not None]:
            print(f"memory: {summary(memory_errors)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
