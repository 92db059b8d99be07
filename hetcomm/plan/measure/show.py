"""A profile of layers for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from hetcomm import _core
from hetcomm.bench.table import number_table
from hetcomm.plan.model import KINDS
from hetcomm.plan.profile import Profile

PASSES = ("forward", "backward")


def tables(profile: Profile) -> Iterator[Table]:
    """A table of times for each device."""
    for name in profile.devices:
        rows = [row for row in profile.rows if row.device == name]
        columns = [f"{kind} {each}" for kind in KINDS for each in PASSES]
        table = number_table(name, ["tensor ranks", "micro-batch", *columns])
        for ranks, samples in sorted({(row.tensor, row.micro_batch) for row in rows}):
            cells = {r.layer: r for r in rows if (r.tensor, r.micro_batch) == (ranks, samples)}
            times = [
                _core.format_seconds(getattr(cells[kind], each)) if kind in cells else ""
                for kind in KINDS
                for each in PASSES
            ]
            table.add_row(str(ranks), str(samples), *times)
        yield table


def sentences(profile: Profile) -> Iterator[str]:
    """The other figures of each device."""
    for name, device in profile.devices.items():
        origin = profile.origins.get(name, {})
        yield f"{name}: {', '.join(f'{key} {value}' for key, value in origin.items())}."
        yield (
            f"{name}: at most {device.operations * 1e-12:.3g} TFLOPS and "
            f"{device.bandwidth * 1e-9:.3g} GB/s, {device.memory * 1e-9:.3g} GB, "
            f"{profile.optimizer[name, 1] * 1e9:.3g} ns of the optimizer for each parameter."
        )
        if (work := profile.host_work.get(name)) is not None:
            yield (
                f"{name}: the host works {_core.format_seconds(work.each_pass)} in each pass, and "
                f"{_core.format_seconds(work.message)} and {work.byte * 1e9:.2g} ns a byte at each "
                "end of a message."
            )
        stated = [
            f"{error:.1%} for another {scaling}"
            for (device_name, scaling), error in profile.errors.items()
            if device_name == name
        ]
        if stated:
            yield f"{name}: scaling errs by {', '.join(stated)}."
    kept = [
        f"{kind}{f' of {ranks} ranks' if ranks > 1 else ''} {_core.format_bytes(round(size))}"
        for (kind, ranks), size in profile.kept.items()
    ]
    if kept:
        yield f"A sample keeps for the backward pass: {', '.join(kept)}."
    if profile.processors is not None:
        yield f"The ranks share processors: {profile.processors:.2f} compute at once at this speed."
    yield from (f"Raised: {each}." for each in profile.raised)
