"""Measured times of layers on each kind of device, and their scaling to shapes not measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from hetcomm import _core
from hetcomm.plan.model import KINDS, Model
from hetcomm.plan.refuse import not_negative, positive, refuse, whole

VERSION = 2
# Passes over the logits by the loss of a vocabulary in parts: maximum, subtract, exponential, sum
# and divide read or write 8 times forward; the gradient subtracts and scales in 3.
LOSS_PASSES = (8, 3)
MEASURE = "hetcomm profile MODEL.json"  # the command that measures on a host with the device
# Assumed errors of scaling, where none was measured: the ratio of achieved rates, from the spread
# of rates of a GPU's own rows.
SCALED_ERROR = 0.2  # another tensor degree or another model
EXTRAPOLATED_ERROR = 0.1  # a micro-batch beyond the largest


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of device, by its data sheet or as measured. Rates: operations and bytes per second.

    operations: at most; no layer may be faster.
    """

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
class HostWork:
    """Seconds of a processor of the host that a step takes beside its layers.

    each_pass: of a forward or backward pass of a chunk: schedule, hooks, autograd. message, byte:
    of a message between stages at one end, and for each of its bytes.
    """

    each_pass: float
    message: float
    byte: float

    def of_message(self, size: float) -> float:
        return self.message + self.byte * size


NO_WORK = HostWork(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    device: a key of Profile.devices. layer: "embedding", "block" or "head". micro_batch: samples.
    tensor: the degree. forward, backward: seconds of one layer, with the collectives of the tensor
    group.
    """

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
    errors: by (device, "micro-batch" or "model"), the relative error of scaling, where measured.
    origins: by device, what measured it: hardware, versions of hetcomm and torch.
    host_work: by device that is a host's processor. A GPU's host runs ahead of the GPU.
    processors: that all ranks of a job share, in ranks that compute at once at the speed of the
    rows, as emulated hosts share those of their machine. None: each rank has its own.
    raised: entries below a physical bound, or above a larger micro-batch's time, for people.

    Raises hetcomm.InvalidArgumentError for rows that are not times of a layer of the model, for
    figures of devices that are not above 0, and for other figures below 0.
    """

    model: Model
    devices: Mapping[str, Device]
    rows: tuple[Row, ...]
    optimizer: Mapping[tuple[str, int], float] = field(default_factory=dict)
    kept: Mapping[tuple[str, int], float] = field(default_factory=dict)
    errors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    origins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    raised: list[str] = field(default_factory=list)
    processors: float | None = None
    host_work: Mapping[str, HostWork] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._curves: dict[tuple[str, str, int], dict[int, Times]] = {}
        self._found: dict[tuple[Model, str, str, int, int], Times] = {}
        again = f"measure it again with {MEASURE}"
        if self.processors is not None:
            positive("profile: processors", self.processors, again)
        for name, device in self.devices.items():
            for what, value in asdict(device).items():
                positive(f"profile: {what} of {name}", value, again)
        self._check_figures(again)
        for row in self.rows:
            self._take(row)
        for key, curve in self._curves.items():
            self._curves[key] = self._rising(key, curve)
        self._degrees: dict[tuple[str, str], list[int]] = {}
        for owner, kind, tensor in sorted(self._curves):
            self._degrees.setdefault((owner, kind), []).append(tensor)

    def _check_figures(self, remedy: str) -> None:
        for what, table in (("optimizer", self.optimizer), ("kept", self.kept)):
            for (of, tensor), value in table.items():
                whole(f"profile: {what} of {of}: tensor degree", tensor, 1)
                not_negative(f"profile: {what} of {of}, {tensor} ranks", value, remedy)
        for (name, scaling), error in self.errors.items():
            not_negative(f"profile: error of {name}, another {scaling}", error, remedy)
        for name, work in self.host_work.items():
            for what, value in asdict(work).items():
                not_negative(f"profile: host_work.{what} of {name}", value, remedy)

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

    def nearest(self, device: str, kind: str, tensor: int) -> int:
        """The measured tensor degree whose times serve for a degree.

        Raises hetcomm.InvalidArgumentError for a device or a kind of layer not measured.
        """
        degrees = self._degrees.get((device, kind))
        if degrees is None:
            known = ", ".join(sorted({d for d, k, _ in self._curves if k == kind})) or "no device"
            got = f"times of {kind} on {known} only"
            refuse(f"profile: {kind} on {device}", "measured times", got, measure_on(device))
        return min(degrees, key=lambda t: abs(math.log(t / tensor)))

    def _layer(self, model: Model, device: str, kind: str, micro_batch: int, tensor: int) -> Times:
        near = self.nearest(device, kind, tensor)
        curve = self._curves[device, kind, near]
        size_error = self.errors.get((device, "micro-batch"), EXTRAPOLATED_ERROR)
        if model == self.model and near == tensor:
            return _at(curve, micro_batch, size_error)
        work = micro_batch * near / tensor * self._work(model, kind)
        times = _at(curve, work, size_error)
        error = SCALED_ERROR
        if near == tensor:
            error = self.errors.get((device, "model"), SCALED_ERROR)
        forward, backward = times.forward, times.backward
        if kind == "head":
            excess = self._loss(self.model, work, near) - self._loss(model, micro_batch, tensor)
            each = excess / self.devices[device].bandwidth
            # The loss takes half of a head's time at most.
            forward = max(forward / 2, forward - LOSS_PASSES[0] * each)
            backward = max(backward / 2, backward - LOSS_PASSES[1] * each)
        return Times(forward, backward, max(times.error, error))

    def _work(self, model: Model, kind: str) -> float:
        """How much more a layer does for a sample than the measured model's."""
        if kind == "embedding":
            return model.output_bytes() / self.model.output_bytes()
        return model.operations(kind) / self.model.operations(kind)

    @staticmethod
    def _loss(model: Model, micro_batch: float, tensor: int) -> float:
        """Bytes of the logits, over which the loss passes."""
        return micro_batch * model.sequence * model.vocabulary * model.activation_bytes / tensor

    def crowding(self, ranks: int) -> float:
        """How many times as long each of so many ranks computes, if all compute at once."""
        return 1.0 if self.processors is None else max(1.0, ranks / self.processors)

    def step_seconds(self, device: str, tensor: int, parameters: float) -> float:
        """Seconds of an optimizer step over a rank's parameters."""
        degrees = [t for d, t in self.optimizer if d == device]
        if not degrees:
            remedy = measure_on(device)
            refuse("profile: optimizer", f"a measurement of {device}", "none", remedy)
        near = min(degrees, key=lambda t: abs(math.log(t / tensor)))
        return self.optimizer[device, near] * parameters

    def host_work_of(self, device: str) -> HostWork:
        """NO_WORK for a device without a measurement."""
        return self.host_work.get(device, NO_WORK)

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

    def text(self) -> str:
        """The profile as JSON, with its version."""
        document = {
            "hetcomm step profile": VERSION,
            "model": asdict(self.model),
            "devices": {name: asdict(each) for name, each in self.devices.items()},
            "rows": [list(asdict(row).values()) for row in self.rows],
            "optimizer": [[*key, value] for key, value in self.optimizer.items()],
            "kept": [[*key, value] for key, value in self.kept.items()],
            "errors": [[*key, value] for key, value in self.errors.items()],
            "origins": {name: dict(each) for name, each in self.origins.items()},
            "processors": self.processors,
            "host_work": {name: asdict(each) for name, each in self.host_work.items()},
        }
        return json.dumps(document) + "\n"

    def save(self, path: str | Path) -> None:
        """Writes text() to a file."""
        Path(path).write_text(self.text(), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Profile:
        """The inverse of save(). Raises hetcomm.InvalidArgumentError with the file."""
        try:
            return Profile.parse(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            refuse(f"profile {path}", "JSON", str(error), f"write it with {MEASURE}")
        except (OSError, _core.InvalidArgumentError) as error:
            raise _core.InvalidArgumentError(f"profile {path}: {error}") from error

    @staticmethod
    def parse(text: str) -> Profile:
        """The inverse of text(). Raises hetcomm.InvalidArgumentError."""
        try:
            table = json.loads(text)
            version = table.get("hetcomm step profile") if isinstance(table, dict) else None
            if version != VERSION:
                refuse("profile", f"version {VERSION}", version, f"write it with {MEASURE}")
            return Profile(
                Model(**table["model"]),
                {name: Device(**each) for name, each in table["devices"].items()},
                tuple(Row(*row) for row in table["rows"]),
                _pairs(table["optimizer"]),
                _pairs(table["kept"]),
                _pairs(table["errors"]),
                table["origins"],
                processors=table.get("processors"),
                host_work={
                    name: HostWork(**each) for name, each in table.get("host_work", {}).items()
                },
            )
        except _core.InvalidArgumentError:
            raise
        except (
            ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
        ) as error:  # fmt: skip
            raise _core.InvalidArgumentError(f"{error!r}; write it with {MEASURE}") from error

    def without(self, devices: Iterable[str]) -> Profile:
        """The profile of all other devices."""
        rest = {name: each for name, each in self.devices.items() if name not in set(devices)}
        return Profile(
            self.model,
            rest,
            tuple(row for row in self.rows if row.device in rest),
            {key: value for key, value in self.optimizer.items() if key[0] in rest},
            self.kept,
            {key: value for key, value in self.errors.items() if key[0] in rest},
            {name: each for name, each in self.origins.items() if name in rest},
            processors=self.processors,
            host_work={name: each for name, each in self.host_work.items() if name in rest},
        )


def measure_on(device: str) -> str:
    """What to do for a device without measurements."""
    return f"measure it with {MEASURE} --device {quote(device)} on a host with {device}"


def _pairs(rows: Iterable[list[Any]]) -> dict[tuple[str, Any], float]:
    return {(name, each): value for name, each, value in rows}


def _at(curve: dict[int, Times], work: float, error: float) -> Times:
    """The times at `work`, in micro-batches of the measured model; error: of scaling."""
    sizes = list(curve)
    if work in curve:
        return curve[int(work)]
    if work > sizes[-1]:
        return curve[sizes[-1]].scaled(work / sizes[-1], error)
    right = max(1, next(i for i, size in enumerate(sizes) if size > work))
    if len(sizes) == 1:
        return curve[sizes[0]].scaled(1.0, error)
    (a, low), (b, high) = ((size, curve[size]) for size in sizes[right - 1 : right + 1])
    w = (work - a) / (b - a)
    # Below the smallest: at least its share, because launches take their time.
    share = min(1.0, work / a)
    return Times(
        max(low.forward + w * (high.forward - low.forward), low.forward * share),
        max(low.backward + w * (high.backward - low.backward), low.backward * share),
        error,
    )
