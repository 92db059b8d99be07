"""A profile of every kind of device in a job: one host of each kind measures, the others wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import torch

from hetcomm import _core
from hetcomm.bench.control import ControlChannel
from hetcomm.plan.measure.device import find
from hetcomm.plan.measure.layers import Layers, Make, plain
from hetcomm.plan.measure.measurement import Effort, Measurement
from hetcomm.plan.model import Model
from hetcomm.plan.profile import Profile, join
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
) -> tuple[Profile, list[str]]:
    """The profile of all kinds, and what was left out; equal on all ranks.

    All ranks of a kind on one host measure at once, because they share memory and processors in a
    step, too; the first one's figures count. Kinds are measured one after another, because emulated
    hosts share processors. Then all ranks compute at once: what they lose tells how many processors
    they share. name: of the kind, instead of the one found. tell: gets an event before each step.
    make: the layers of the model, if not plain ones.
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
    mine = Measurement(model, devices[0], effort, hosts.count(hosts[control.rank]), make)
    steps = list(mine.steps())
    found, left_out = [], []
    for turn, kind in enumerate(kinds):
        owner = [each for each, _ in places].index(kind)
        measures = places[control.rank] == places[owner]
        shown = name or kind
        for number, (what, action) in enumerate(steps):
            total = len(kinds) * len(steps) + 1
            tell({"case": f"{shown}: {what}", "number": turn * len(steps) + number, "of": total})
            control.run_on_all(action if measures else lambda: None)

        def result(shown: str = shown) -> list[Any]:
            return [mine.profile(shown).text(), mine.left_out]

        answers = control.run_on_all(result if control.rank == owner else lambda: None)
        text, without = answers[owner]
        found.append(Profile.parse(text))
        left_out += [f"{shown}: {each}" for each in without]
    tell({"case": "all ranks at once", "number": len(kinds) * len(steps), "of": total})
    processors = _processors(control, mine, places) if len(set(hosts)) > 1 else None
    return replace(join(found), processors=processors), left_out


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
