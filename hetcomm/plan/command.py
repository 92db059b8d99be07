"""The command line: `hetcomm plan cluster.toml model.json --profile steps.json --batch 1024`."""

from __future__ import annotations

import re
from json import dumps
from pathlib import Path
from shlex import join as quoted
from typing import Annotated

import typer
from rich.console import Console

from hetcomm import _core
from hetcomm.emulate import ClusterError
from hetcomm.emulate.cluster import Cluster, load
from hetcomm.files import link_profile, writing
from hetcomm.plan.join import join
from hetcomm.plan.layout import SCHEDULES
from hetcomm.plan.model import Model
from hetcomm.plan.profile import MEASURE, Profile
from hetcomm.plan.refuse import refuse
from hetcomm.plan.search.propose import Limits, propose
from hetcomm.plan.search.show import describe, render


def plan(
    cluster: Annotated[
        Path, typer.Argument(help="The cluster file, as for emulate; hetcomm topo --save has one.")
    ],
    model: Annotated[Path, typer.Argument(help="Sizes as JSON, or Hugging Face's config.json.")],
    profile: Annotated[
        list[Path] | None,
        typer.Option(help="Times of layers, by hetcomm profile; one for each kind of device."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples of an optimizer step.")] = 1024,
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens of a sample.")] = None,
    links: Annotated[Path | None, typer.Option(help="A profile of hetcomm tune.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 5,
    tensor: Annotated[
        list[int] | None, typer.Option(help="A tensor degree; repeatable. Default: as measured.")
    ] = None,
    context: Annotated[
        list[int] | None, typer.Option(help="A context degree; repeatable. Default: 1.")
    ] = None,
    micro_batch: Annotated[
        list[int] | None, typer.Option(help="Samples of a pass; repeatable. Default: 1 to 16.")
    ] = None,
    schedule: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(SCHEDULES)}; repeatable. Default: all.")
    ] = None,
    codec: Annotated[
        list[str] | None, typer.Option(help="Of gradients on the bridge; repeatable.")
    ] = None,
    every_rank: Annotated[bool, typer.Option("--every-rank", help="Leave no rank idle.")] = False,
    tolerance: Annotated[
        float, typer.Option(min=0, max=0.5, help="End when no layout is faster by this share.")
    ] = 0.01,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of the search, at most.")] = 60.0,
    json: Annotated[Path | None, typer.Option(help="Write all figures here.")] = None,
    layout: Annotated[Path | None, typer.Option(help="Write the best layout here.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Write a PNG of the layout here.")] = None,
) -> None:
    """Find the best layout of a model on a cluster: who computes which layers, and how.

    Shows the layout, its predicted step time and memory, the runners-up, and how far the layout is
    from what all devices could do.
    """
    if not profile:
        refuse("--profile", "a profile of the cluster's devices", "nothing", f"make one: {MEASURE}")
    limits = Limits(
        tensors=_divisors("--tensor", tensor),
        contexts=_divisors("--context", context) or (1,),
        micro_batches=_divisors("--micro-batch", micro_batch) or Limits.micro_batches,
        schedules=_schedules(schedule),
        codecs=codec or Limits.codecs,
        every_rank=every_rank,
        tolerance=tolerance,
        seconds=seconds,
        top=top,
    )
    try:
        described = load(cluster)
    except ClusterError as error:
        raise _core.InvalidArgumentError(str(error)) from error
    measured = join([Profile.load(each) for each in profile])
    _check_devices(described, measured, model, sequence)
    proposal = propose(
        described,
        Model.load(model, sequence),
        measured,
        batch,
        limits,
        None if links is None else link_profile("--links", links),
    )
    Console().print(render(proposal))
    for option, path, text in (
        ("--json", json, dumps(describe(proposal), indent=1) + "\n"),
        ("--layout", layout, proposal.best.layout.text()),
    ):
        if path is not None:
            with writing(option, path):
                path.write_text(text)
    if picture is not None:
        from hetcomm.plan.search.picture import write_picture  # matplotlib takes a second to load

        write_picture(picture, proposal)


def _check_devices(cluster: Cluster, profile: Profile, model: Path, sequence: int | None) -> None:
    """Refuses kinds of devices without measurements, with the commands that measure them."""
    kinds = dict.fromkeys(host.kind for host in cluster.hosts)
    missing = [kind for kind in kinds if kind not in profile.devices]
    if not missing:
        return
    longer = [] if sequence is None else ["--sequence", str(sequence)]
    remedies = []
    for kind in missing:
        out = re.sub(r"[^A-Za-z0-9]+", "-", kind).strip("-") + ".json"
        command = ["hetcomm", "profile", str(model), *longer, "--device", kind, "--out", out]
        remedies.append(f"run `{quoted(command)}` on a host with {kind}, and add --profile {out}")
    known = ", ".join(sorted(profile.devices)) or "none"
    refuse("--profile", f"times of {', '.join(missing)}", f"only {known}", "; ".join(remedies))


def _divisors(option: str, values: list[int] | None) -> list[int] | None:
    """Distinct degrees, ascending; None for none."""
    for value in values or ():
        if value < 1:
            refuse(option, "at least 1", value, "correct it")
    return sorted(set(values)) if values else None


def _schedules(names: list[str] | None) -> list[str]:
    for name in names or ():
        if name not in SCHEDULES:
            refuse("--schedule", f"one of {', '.join(SCHEDULES)}", name, "choose one of these")
    return list(dict.fromkeys(names or Limits.schedules))
