"""One profile of devices that were measured apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from hetcomm.plan.model import Model
from hetcomm.plan.profile import MEASURE, Device, Profile
from hetcomm.plan.refuse import refuse


def join(profiles: Sequence[Profile]) -> Profile:
    """One profile of all devices, which were measured apart. Activations take the most bytes, and
    the fewest processors count.

    Raises hetcomm.InvalidArgumentError for profiles of unlike models, or with a device in common.
    """
    model = profiles[0].model
    devices: dict[str, Device] = {}
    kept: dict[tuple[str, int], float] = {}
    for profile in profiles:
        if profile.model != model:
            unlike = [
                f"{each.name}={getattr(profile.model, each.name)}"
                for each in fields(Model)
                if getattr(profile.model, each.name) != getattr(model, each.name)
            ]
            remedy = f"measure all devices with one model: {MEASURE}"
            refuse("profiles", "profiles of one model", f"one with {', '.join(unlike)}", remedy)
        if both := sorted(devices.keys() & profile.devices.keys()):
            remedy = f"leave one of the files out, or name the devices apart: {MEASURE} --device"
            refuse("profiles", "each device in one profile", f"{both} in several", remedy)
        devices |= profile.devices
        for key, value in profile.kept.items():
            kept[key] = max(value, kept.get(key, 0.0))
    return Profile(
        model,
        devices,
        tuple(row for profile in profiles for row in profile.rows),
        {key: value for profile in profiles for key, value in profile.optimizer.items()},
        kept,
        {key: value for profile in profiles for key, value in profile.errors.items()},
        {name: each for profile in profiles for name, each in profile.origins.items()},
        processors=min((p.processors for p in profiles if p.processors is not None), default=None),
        host_work={name: each for profile in profiles for name, each in profile.host_work.items()},
    )
