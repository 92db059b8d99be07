"""A profile of every kind of device in a job: one host of each kind measures, the others wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from statistics import mean
from typing import Any

import torch

from hetcomm import _core
from hetcomm.bench.control import ControlChannel
from hetcomm.plan.join import join
from hetcomm.plan.measure.device import find
from hetcomm.plan.measure.groups import HostGroups
from hetcomm.plan.measure.host_work import host_work_apart
from hetcomm.plan.measure.layers import Divide, Layers, Make, divide, plain
from hetcomm.plan.measure.measurement import Effort, Measurement
from hetcomm.plan.model import Model
from hetcomm.plan.profile import HostWork, Profile
from hetcomm.plan.refuse import refuse

Tell = Callable[[dict[str, Any]], None]
SHARED = 0.9  # ranks have processors of their own if they keep so much of their speed together


def measure(
    model: Model,
    effort: Effort,
    control: ControlChannel,
    name: str | None,
    tell: Tell,
    make: Make = plain,
    divide: Divide = divide,
) -> tuple[Profile, list[str]]:
    """The profile of all kinds, and what was left out; equal on all ranks.

    All ranks of a kind on one host measure at once, because they share memory and processors in a
    step, too; the first one's figures count. Kinds are measured one after another, because emulated
    hosts share processors. Of a kind that is a host's processor, the host's work beside layers is
    measured too. Then all ranks compute at once: what they lose tells how many processors they
    share. name: of the kind, instead of the one found. tell: gets an event before each step.
    make: the layers of the model, if not plain ones. divide: how tensor ranks divide these.
    Raises hetcomm.InvalidArgumentError for a name with several kinds, and for what cannot be
    measured.
    """
    devices: list[torch.device] = []

    def look() -> list[str]:
        kind, device = find()
        devices.append(device)
        return [kind, _core.probe_rank().host]

    places = control.run_on_all(look)
    hosts = [host for _, host in places]
    kinds = list(dict.fromkeys(kind for kind, _ in places))
    if name is not None and len(kinds) > 1:
        refuse("--device", f"one kind of device for {name}", kinds, "leave --device out")
    mates = [rank for rank, host in enumerate(hosts) if host == hosts[control.rank]]
    groups = HostGroups(control, mates, devices[0], hosts[control.rank])
    mine = Measurement(model, devices[0], effort, len(mates), make, divide)
    sizes = {kind: hosts.count(host) for kind, host in reversed(places)}
    degrees = {kind: _degrees(model, effort, size) for kind, size in sizes.items()}
    _check_degrees(effort, sizes, degrees)
    found, left_out = [], []

    measurements = {
        kind: [mine, *(mine.divided(t, partial(groups.mesh, t)) for t in degrees[kind])]
        for kind in kinds
    }
    actions = sum(len(list(each.steps())) for every in measurements.values() for each in every)
    total, number = actions + len(kinds) + 1, count()

    def show(case: str) -> None:
        tell({"case": case, "number": next(number), "of": total})

    for kind in kinds:
        owner = [each for each, _ in places].index(kind)
        measures = places[control.rank] == places[owner]
        shown = name or kind
        every = measurements[kind]
        if degrees[kind]:
            control.run_on_all(groups.open if measures else lambda: None)
        for what, action in (step for each in every for step in each.steps()):
            show(f"{shown}: {what}")
            control.run_on_all(action if measures else lambda: None)
        if degrees[kind]:
            control.run_on_all(groups.close if measures else lambda: None)

        def result(shown: str = shown, every: Sequence[Measurement] = every) -> list[Any]:
            without = [each for one in every for each in one.left_out]
            return [mine.profile(shown, every[1:]).text(), without]

        answers = control.run_on_all(result if control.rank == owner else lambda: None)
        text, without = answers[owner]
        show(f"{shown}: passes and messages")
        computes = control.rank == owner and devices[0].type == "cpu"
        works = control.run_on_all(_host_work if computes else lambda: None)
        work = {shown: HostWork(**works[owner])} if works[owner] else {}
        found.append(replace(Profile.parse(text), host_work=work, raised=[]))
        left_out += [f"{shown}: {each}" for each in without]
        left_out += [
            f"{shown}: tensor degree {each}, its host has {sizes[kind]} ranks"
            for each in effort.tensor[1:]
            if each not in degrees[kind]
        ]
    show("all ranks at once")
    processors = _processors(control, mine, places) if len(set(hosts)) > 1 else None
    return replace(join(found), processors=processors), left_out


def _degrees(model: Model, effort: Effort, ranks: int) -> list[int]:
    """The tensor degrees above 1 that a host with so many ranks can measure."""
    for degree in effort.tensor[1:]:
        model.parameters("block", degree)  # refuses heads that it does not divide
    return [degree for degree in effort.tensor[1:] if ranks % degree == 0]


def _check_degrees(effort: Effort, sizes: dict[str, int], degrees: dict[str, list[int]]) -> None:
    for degree in effort.tensor[1:]:
        if not any(degree in each for each in degrees.values()):
            remedy = f"start {degree} on a host: torchrun --no-python --nproc-per-node {degree} ..."
            refuse("--tensor", f"a multiple of {degree} ranks on a host", sizes, remedy)


def _host_work() -> dict[str, float]:
    return asdict(host_work_apart())


def _processors(
    control: ControlChannel, mine: Measurement, places: Sequence[Sequence[str]]
) -> float | None:
    """The processors that all ranks share: the sum of the speeds of all ranks at once, each as a
    share of its speed while one host of its kind computes. None if ranks lose little. places: kind
    and host of each rank."""
    blocks: list[Layers] = []
    control.run_on_all(lambda: blocks.append(mine.blocks()))

    alone: dict[str, float] = {}
    for kind, host in {kind: (kind, host) for kind, host in reversed(places)}.values():
        measures = list(places[control.rank]) == [kind, host]
        every = control.run_on_all((lambda: mine.seconds(blocks[0])) if measures else lambda: None)
        alone[kind] = mean(each for each in every if each is not None)
    together = control.run_on_all(lambda: mine.rate(blocks[0]))
    speeds: float = sum(
        rate * alone[kind] for rate, (kind, _) in zip(together, places, strict=True)
    )
    return speeds if speeds < SHARED * len(places) else None
