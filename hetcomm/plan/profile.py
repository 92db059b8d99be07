"""Measured times of layers on each kind of device, and their scaling to shapes not measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.plan.model import KINDS, Model
from hetcomm.plan.refuse import positive, refuse, whole

VERSION = 1
# Passes over the logits by the loss of a vocabulary in parts: maximum, subtract, exponential, sum
# and divide read or write 8 times forward; the gradient subtracts and scales in 3.
LOSS_PASSES = (8, 3)
MEASURE = "hetcomm profile"  # the command that measures on a host with the device
# Errors of scaling: the ratio of achieved rates, from the spread of rates of a GPU's own rows.
SCALED_ERROR = 0.2  # another tensor degree or another model
EXTRAPOLATED_ERROR = 0.1  # a micro-batch beyond the largest


@dataclass(frozen=True, slots=True)
class Device:
    """What a data sheet says of a kind of device. Rates: operations and bytes per second."""

    operations: float
    bandwidth: float
    memory: float  # bytes


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one micro-batch through one layer. error: relative, of scaling; 0 if measured."""

    forward: float
    backward: float
    error: float = 0.0

    def scaled(self, ratio: float, error: float) -> Times:
        return Times(self.forward * ratio, self.backward * ratio, max(self.error, error))


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; times include the collectives of the tensor group."""

    device: str
    layer: str
    micro_batch: int
    tensor: int
    forward: float
    backward: float


@dataclass
class Profile:
    """Rows for one model on many kinds of devices.

    optimizer: by (device, tensor degree), seconds of an optimizer step per parameter of a rank.
    kept: by (kind of layer, tensor degree), bytes of activations of one sample, where measured.
    raised: entries below a physical bound, or above a larger micro-batch's time, for people.

    Raises hetcomm.InvalidArgumentError for rows that are not times of a layer of the model.
    """

    model: Model
    devices: Mapping[str, Device]
    rows: tuple[Row, ...]
    optimizer: Mapping[tuple[str, int], float] = field(default_factory=dict)
    kept: Mapping[tuple[str, int], float] = field(default_factory=dict)
    raised: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._curves: dict[tuple[str, str, int], dict[int, Times]] = {}
        self._found: dict[tuple[Model, str, str, int, int], Times] = {}
        for row in self.rows:
            self._take(row)
        for key, curve in self._curves.items():
            self._curves[key] = self._rising(key, curve)

    def _take(self, row: Row) -> None:
        at = f"profile: {row.device} {row.layer}, micro-batch {row.micro_batch}, {row.tensor} ranks"
        if row.layer not in KINDS:
            refuse(at, f"a layer out of {', '.join(KINDS)}", row.layer, "correct the file")
        if row.device not in self.devices:
            refuse(at, f"a device out of {sorted(self.devices)}", row.device, "describe the device")
        whole(f"{at}: micro-batch", row.micro_batch, 1)
        whole(f"{at}: tensor degree", row.tensor, 1)
        times = []
        for name, passes, seconds in (("forward", 1, row.forward), ("backward", 2, row.backward)):
            least = self._least(row, passes)
            if row.layer == "embedding" and 0 <= seconds < least:
                # Hooks of modules see nothing of it: no gradient of an input ends it.
                self.raised.append(f"{at}: {name} {seconds:.3g} -> {least:.3g} s")
            else:
                positive(f"{at}: {name}", seconds, f"measure it again with {MEASURE}")
                if seconds < least:
                    bound = f"{least:.3g} s at the device's peak, or more"
                    refuse(f"{at}: {name}", bound, seconds, f"measure it again with {MEASURE}")
            times.append(max(seconds, least))
        curve = self._curves.setdefault((row.device, row.layer, row.tensor), {})
        curve[row.micro_batch] = Times(*times)

    def _least(self, row: Row, passes: int) -> float:
        """The time of the layer's operations at the device's peak; of an embedding's backward pass,
        the time to write its gradient, and to read two tables and write one to accumulate it."""
        device = self.devices[row.device]
        if row.layer == "embedding":
            table = self.model.parameters("embedding", row.tensor) * self.model.gradient_bytes
            return 4 * table / device.bandwidth if passes == 2 else 0.0
        work = self.model.operations(row.layer) * row.micro_batch * passes / row.tensor
        return work / device.operations

    def _rising(self, key: tuple[str, str, int], curve: dict[int, Times]) -> dict[int, Times]:
        """A micro-batch slower than a larger one was disturbed, and gets the larger one's time."""
        least = [math.inf, math.inf]
        rising: dict[int, Times] = {}
        for size in sorted(curve, reverse=True):
            for i, seconds in enumerate((curve[size].forward, curve[size].backward)):
                if seconds > least[i]:
                    name = ("forward", "backward")[i]
                    self.raised.append(f"{key}, micro-batch {size}: {name} -> {least[i]:.3g} s")
                least[i] = min(least[i], seconds)
            rising[size] = Times(*least)
        return dict(sorted(rising.items()))

    def layer(self, model: Model, device: str, kind: str, micro_batch: int, tensor: int) -> Times:
        """Times of a layer of `model`.

        Between two measured micro-batches the time is linear, beyond the largest proportional.
        Another tensor degree or model takes the time of equal work: of the micro-batch of the
        measured model with as many operations on a rank, of an embedding with as many bytes. Of
        a head the loss takes its passes over the logits.
        Raises hetcomm.InvalidArgumentError for a device or a kind of layer not measured.
        """
        key = (model, device, kind, micro_batch, tensor)
        if key not in self._found:
            self._found[key] = self._layer(model, device, kind, micro_batch, tensor)
        return self._found[key]

    def _layer(self, model: Model, device: str, kind: str, micro_batch: int, tensor: int) -> Times:
        degrees = sorted(t for d, k, t in self._curves if (d, k) == (device, kind))
        if not degrees:
            known = sorted({d for d, _, _ in self._curves})
            remedy = f"measure it with {MEASURE} on a host with {device}"
            refuse(f"profile: {kind} on {device}", f"a device out of {known}", device, remedy)
        near = min(degrees, key=lambda t: abs(math.log(t / tensor)))
        curve = self._curves[device, kind, near]
        if model == self.model and near == tensor:
            return _at(curve, micro_batch)
        work = micro_batch * near / tensor * self._work(model, kind)
        times = _at(curve, work)
        forward, backward = times.forward, times.backward
        if kind == "head":
            excess = self._loss(self.model, work, near) - self._loss(model, micro_batch, tensor)
            each = excess / self.devices[device].bandwidth
            # The loss takes half of a head's time at most.
            forward = max(forward / 2, forward - LOSS_PASSES[0] * each)
            backward = max(backward / 2, backward - LOSS_PASSES[1] * each)
        return Times(forward, backward, max(times.error, SCALED_ERROR))

    def _work(self, model: Model, kind: str) -> float:
        """How much more a layer does for a sample than the measured model's."""
        if kind == "embedding":
            return model.output_bytes() / self.model.output_bytes()
        return model.operations(kind) / self.model.operations(kind)

    @staticmethod
    def _loss(model: Model, micro_batch: float, tensor: int) -> float:
        """Bytes of the logits, over which the loss passes."""
        return micro_batch * model.sequence * model.vocabulary * model.activation_bytes / tensor

    def step_seconds(self, device: str, tensor: int, parameters: float) -> float:
        """Seconds of an optimizer step over a rank's parameters."""
        degrees = [t for d, t in self.optimizer if d == device]
        if not degrees:
            remedy = f"measure it with {MEASURE} on a host with {device}"
            refuse("profile: optimizer", f"a measurement of {device}", "none", remedy)
        near = min(degrees, key=lambda t: abs(math.log(t / tensor)))
        return self.optimizer[device, near] * parameters

    def bandwidth(self, device: str) -> float:
        """Bytes per second of a device's memory. Raises hetcomm.InvalidArgumentError."""
        if device not in self.devices:
            refuse("device", f"one of {sorted(self.devices)}", device, "describe it in the profile")
        return self.devices[device].bandwidth

    def kept_bytes(self, model: Model, kind: str, tensor: int) -> float:
        """Bytes of kept activations of a sample: as measured for this model, else computed."""
        if model == self.model and (kind, tensor) in self.kept:
            return self.kept[kind, tensor]
        return model.kept_bytes(kind, tensor)

    def save(self, path: str | Path) -> None:
        """Writes the profile as JSON."""
        document = {
            "hetcomm step profile": VERSION,
            "model": asdict(self.model),
            "devices": {name: asdict(each) for name, each in self.devices.items()},
            "rows": [list(asdict(row).values()) for row in self.rows],
            "optimizer": [[*key, value] for key, value in self.optimizer.items()],
            "kept": [[*key, value] for key, value in self.kept.items()],
        }
        Path(path).write_text(json.dumps(document) + "\n")

    @staticmethod
    def load(path: str | Path) -> Profile:
        """The inverse of save(). Raises hetcomm.InvalidArgumentError with the file."""
        try:
            table = json.loads(Path(path).read_text())
            version = table.get("hetcomm step profile") if isinstance(table, dict) else None
            if version != VERSION:
                refuse("profile", f"version {VERSION}", version, f"write it with {MEASURE}")
            return Profile(
                Model(**table["model"]),
                {name: Device(**each) for name, each in table["devices"].items()},
                tuple(Row(*row) for row in table["rows"]),
                _pairs(table["optimizer"]),
                _pairs(table["kept"]),
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            text = f"profile {path}: {error!r}; write it with {MEASURE}"
            raise _core.InvalidArgumentError(text) from error


def _pairs(rows: Iterable[list[Any]]) -> dict[tuple[str, int], float]:
    return {(name, degree): value for name, degree, value in rows}


def _at(curve: dict[int, Times], work: float) -> Times:
    """The times at `work`, in micro-batches of the measured model."""
    sizes = list(curve)
    if work in curve:
        return curve[int(work)]
    if work > sizes[-1]:
        return curve[sizes[-1]].scaled(work / sizes[-1], EXTRAPOLATED_ERROR)
    right = max(1, next(i for i, size in enumerate(sizes) if size > work))
    if len(sizes) == 1:
        return curve[sizes[0]].scaled(1.0, EXTRAPOLATED_ERROR)
    (a, low), (b, high) = ((size, curve[size]) for size in sizes[right - 1 : right + 1])
    w = (work - a) / (b - a)
    # Below the smallest: at least its share, because launches take their time.
    share = min(1.0, work / a)
    return Times(
        max(low.forward + w * (high.forward - low.forward), low.forward * share),
        max(low.backward + w * (high.backward - low.backward), low.backward * share),
        EXTRAPOLATED_ERROR,
    )
