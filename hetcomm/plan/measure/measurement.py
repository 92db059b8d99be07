"""The measurements of one device, and the profile that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch.distributed.device_mesh import DeviceMesh

import hetcomm
from hetcomm.demo.machine import processor
from hetcomm.plan.measure.groups import GroupClock
from hetcomm.plan.measure.layers import Divide, Layers, Make, divide, dtype_of, plain
from hetcomm.plan.measure.memory import device_memory, free_memory, kept_bytes, needed
from hetcomm.plan.measure.peaks import memory_bandwidth, peak_operations, step_seconds
from hetcomm.plan.measure.timing import Clock, medians, throughput
from hetcomm.plan.model import KINDS, Model
from hetcomm.plan.profile import Device, Profile, Row
from hetcomm.plan.refuse import positive, refuse

ROW = 4  # blocks in a row, so their weights do not stay in a cache
ATTEMPTS = 3  # at a time that cannot be
FALL = 0.2  # a larger micro-batch may be faster by this share, where launches take the time
ABOVE_PEAK = 1.1  # clocks vary, so a layer may be this much faster than a matrix product


@dataclass(frozen=True)
class Effort:
    """How much of a model to measure, and how long.

    micro_batches: ascending. seconds: of each measurement. tensor: degrees, ascending from 1.
    """

    micro_batches: tuple[int, ...]
    seconds: float
    tensor: tuple[int, ...] = (1,)


@dataclass(frozen=True, order=True)
class Case:
    """A kind of layer with a micro-batch. held_out: only for the error of scaling."""

    kind: str
    samples: int
    narrow: bool = False
    held_out: bool = False

    def __str__(self) -> str:
        return f"{'half ' if self.narrow else ''}{self.kind}, micro-batch {self.samples}"


def half_of(model: Model) -> Model | None:
    """The model with half the heads and half the width; None for odd numbers."""
    groups = model.key_value_heads
    halves = {
        name: getattr(model, name) // 2
        for name in ("hidden", "heads", "feed_forward")
        if getattr(model, name) % 2 == 0
    }
    if len(halves) < 3 or groups % 2:
        return None
    return replace(model, **halves, key_value_heads=groups // 2)


def cases_of(model: Model, effort: Effort, tensor: int = 1) -> list[Case]:
    """All layers to measure. With tensor degree 1 also those of other shapes: twice the largest
    micro-batch, and the largest one with half the width."""
    largest = effort.micro_batches[-1]
    found = [Case(kind, samples) for kind in KINDS for samples in effort.micro_batches]
    if tensor > 1:
        return found
    found += [Case(kind, 2 * largest, held_out=True) for kind in KINDS]
    if half_of(model) is not None:
        found += [Case(kind, largest, narrow=True, held_out=True) for kind in KINDS]
    return found


class Measurement:
    """Carries out the measurements of a model on one device, step by step.

    divided() gives those of the layers that the ranks of a tensor group divide.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        effort: Effort,
        ranks: int = 1,
        make: Make = plain,
        divide: Divide = divide,
    ) -> None:
        """ranks: of the host, which share its memory. make: of the layers. divide: see Layers."""
        self.model, self.device, self.effort, self.ranks = model, device, effort, ranks
        self.make, self.divide = make, divide
        self.tensor = 1
        self.mesh: DeviceMesh | None = None
        self.clock = Clock(device)
        self.times: dict[Case, tuple[float, float]] = {}
        self.left_out: list[str] = []
        self.peak = self.bandwidth = self.optimizer = 0.0
        self.kept: dict[tuple[str, int], float] = {}

    def divided(self, degree: int, mesh: Callable[[], DeviceMesh]) -> Measurement:
        """The measurements of layers that `degree` ranks divide. mesh: makes that of the ranks, in
        the first step. The ranks carry out the steps together."""
        return _Divided(self, degree, mesh)

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Names and actions, in order. Their number depends on model and effort only."""
        yield "matrix products", self._peaks
        yield from self._of_layers()
        yield "optimizer", self._optimizer
        yield "what cannot be, again", self._check

    def _of_layers(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for case in cases_of(self.model, self.effort, self.tensor):
            yield str(case), lambda case=case: self._layers(case)  # type: ignore[misc]
        for kind in KINDS:
            yield f"activations of {kind}", lambda kind=kind: self._kept(kind)  # type: ignore[misc]

    def _peaks(self) -> None:
        dtype = dtype_of(self.model, self.device)
        room = free_memory(self.device, self.ranks) / 4
        self.peak = peak_operations(self.clock, dtype, room, self.effort.seconds)
        self.bandwidth = memory_bandwidth(self.clock, room, self.effort.seconds)

    def _layers(self, case: Case) -> None:
        model = half_of(self.model) if case.narrow else self.model
        assert model is not None
        count = min(ROW, model.blocks) if case.kind == "block" else 1
        if self._lacks(model, case.kind, case.samples, count):
            count = 1
            if self._lacks(model, case.kind, case.samples, count):
                self.left_out.append(f"{case}: the memory is too small")
                return
        layers = Layers(
            model,
            case.kind,
            case.samples,
            self.device,
            count,
            self.make,
            self.mesh,
            self.divide,
        )
        parts = (layers.forward, layers.backward)
        forward, backward = medians(self.clock, parts, self.effort.seconds)
        self.times[case] = (forward / count, backward / count)

    def _lacks(self, model: Model, kind: str, samples: int, count: int = 1) -> bool:
        """Whether the memory is too small, on one of the ranks that measure together."""
        free = free_memory(self.device, self.ranks)
        return self.clock.any(needed(model, kind, samples, count, self.tensor) > free)

    def blocks(self) -> Layers:
        """Blocks with the smallest micro-batch, ready for seconds() and rate()."""
        samples, count = self.effort.micro_batches[0], min(ROW, self.model.blocks)
        if self._lacks(self.model, "block", samples, count):
            count = 1
        layers = Layers(self.model, "block", samples, self.device, count, self.make)
        layers.forward()
        layers.backward()
        self.clock.finish()
        return layers

    def seconds(self, blocks: Layers) -> float:
        """In which the blocks go forward and backward, as in rows."""
        parts = (blocks.forward, blocks.backward)
        return sum(medians(self.clock, parts, self.effort.seconds))

    def rate(self, blocks: Layers) -> float:
        """How often the blocks go forward and backward in a second that passes, while other ranks
        have the processor now and then."""
        parts = (blocks.forward, blocks.backward)
        return throughput(self.clock, parts, self.effort.seconds)

    def _kept(self, kind: str) -> None:
        if self._lacks(self.model, kind, 2):
            self.left_out.append(f"activations of {kind}: computed, the memory is too small")
            return
        self.kept[kind, self.tensor] = kept_bytes(
            self.model, kind, self.device, self.make, self.mesh, self.divide
        )

    def _optimizer(self) -> None:
        dtype = dtype_of(self.model, self.device)
        room = free_memory(self.device, self.ranks) / 2
        self.optimizer = step_seconds(
            self.model, self.clock, dtype, room, self.effort.seconds, self.make
        )

    def _check(self) -> None:
        """Measures again what cannot be, and what was disturbed.

        Raises hetcomm.InvalidArgumentError for times that stay impossible.
        """
        smallest = self.effort.micro_batches[0]
        for kind in KINDS:
            if Case(kind, smallest) not in self.times:
                remedy = "take a smaller micro-batch, --sequence, or a device with more memory"
                refuse(f"{kind}, micro-batch {smallest}", "enough memory", "less", remedy)
        for _ in range(ATTEMPTS - 1):
            self.times, self.peak = self.clock.same((self.times, self.peak))
            wrong = impossible(self.model, self.times, self.peak * self.tensor)
            if wrong and self.tensor == 1:
                peak, bandwidth = self.peak, self.bandwidth
                self._peaks()
                self.peak = max(peak, self.peak)
                self.bandwidth = max(bandwidth, self.bandwidth)
            for case in wrong:
                self._layers(case)
            for case in falling(self.times):
                before = self.times[case]
                self._layers(case)
                self.times[case] = min(before, self.times[case], key=sum)
        remedy = "end other programs on the machine, and run the command again"
        positive("seconds of the optimizer", self.optimizer, remedy)
        self.times = self.clock.same(self.times)
        for case, why in impossible(self.model, self.times, self.peak * self.tensor).items():
            refuse(str(case), why, "{:.3g} s forward, {:.3g} s backward".format(*self.times[case]),
                   remedy)  # fmt: skip

    def rows(self, name: str) -> tuple[Row, ...]:
        """The times of layers, of a device with this name."""
        return tuple(
            Row(name, case.kind, case.samples, self.tensor, *times)
            for case, times in self.times.items()
            if not case.held_out
        )

    def profile(self, name: str, divided: Sequence[Measurement] = ()) -> Profile:
        """The profile of this device under a name, with layers that tensor groups divide."""
        every = [self, *divided]
        rows = tuple(row for each in every for row in each.rows(name))
        kept = {key: size for each in every for key, size in each.kept.items()}
        fastest = max(each._fastest() for each in every)
        device = Device(fastest, self.bandwidth, device_memory(self.device, self.ranks))
        fit = Profile(self.model, {name: device}, rows, {(name, 1): self.optimizer}, kept)
        errors = {
            (name, scaling): error
            for scaling, narrow in (("micro-batch", False), ("model", True))
            if (error := self._error(fit, name, narrow)) is not None
        }
        return replace(fit, errors=errors, origins={name: self._origin()}, raised=[])

    def _fastest(self) -> float:
        """Operations per second: of a matrix product, or of the fastest layer. Causal attention
        skips half of the scores, which Model.operations() counts."""
        rates = [self.peak]
        for case, times in self.times.items():
            work = self.model.operations(case.kind) * case.samples / self.tensor
            if not case.narrow:
                rates += [work / times[0], 2 * work / times[1]]
        return max(rates) * (1 + 1e-9)  # above any rounding

    def _error(self, fit: Profile, name: str, narrow: bool) -> float | None:
        """The error of the profile for the shapes held out, by the time of all layers of the model;
        None if none was measured."""
        off = total = 0.0
        for case, measured in self.times.items():
            if case.held_out and case.narrow == narrow:
                model = half_of(self.model) if narrow else self.model
                assert model is not None
                times = fit.layer(model, name, case.kind, case.samples, 1)
                count = model.blocks if case.kind == "block" else 1
                off += count * abs(times.forward + times.backward - sum(measured))
                total += count * sum(measured)
        return off / total if total else None

    def _origin(self) -> dict[str, str]:
        on_host = self.device.type == "cpu"
        hardware = processor() if on_host else torch.cuda.get_device_name(self.device)
        found = {"hardware": hardware, "hetcomm": hetcomm.__version__, "torch": torch.__version__}
        return found | ({"threads": str(torch.get_num_threads())} if on_host else {})


class _Divided(Measurement):
    """See Measurement.divided()."""

    def __init__(self, of: Measurement, degree: int, mesh: Callable[[], DeviceMesh]) -> None:
        super().__init__(of.model, of.device, of.effort, of.ranks, of.make, of.divide)
        self.tensor, self._of, self._make_mesh = degree, of, mesh

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        ranks = f"{self.tensor} ranks: "
        yield f"{ranks}group", self._open
        for what, action in (*self._of_layers(), ("what cannot be, again", self._check)):
            yield ranks + what, action

    def _open(self) -> None:
        self.mesh = self._make_mesh()
        self.clock = GroupClock(self.device, self.mesh)
        self.peak, self.optimizer = self._of.peak, self._of.optimizer


def impossible(
    model: Model, times: dict[Case, tuple[float, float]], peak: float
) -> dict[Case, str]:
    """Times that cannot be, each with what was expected. peak: operations per second."""
    found: dict[Case, str] = {}
    for case, seconds in times.items():
        shape = half_of(model) if case.narrow else model
        assert shape is not None
        work = shape.operations(case.kind)
        if case.kind == "block" and model.flash:  # may skip the scores of later tokens
            work -= 2.0 * shape.sequence**2 * shape.hidden
        for passes, each in zip((1, 2), seconds, strict=True):
            least = passes * work * case.samples / (peak * ABOVE_PEAK)
            if not each > 0 or each < least:
                found[case] = f"more than {least:.3g} s each way, as at the device's peak"
    return found


def falling(times: dict[Case, tuple[float, float]]) -> list[Case]:
    """Micro-batches that took longer than a larger one: other work disturbed them."""
    found = []
    for kind in KINDS:
        cases = sorted(case for case in times if case.kind == kind and not case.narrow)
        for small, large in pairwise(cases):
            if sum(times[large]) < (1 - FALL) * sum(times[small]):
                found.append(small)
    return found
