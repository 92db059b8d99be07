"""The command line: `hetcomm profile model.json`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from shlex import join as quoted
from typing import Annotated, Any

import typer

from hetcomm import _core, rendezvous
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.progress import Page
from hetcomm.bench.start import Progress, run_here
from hetcomm.bench.table import output
from hetcomm.files import check_folder, writing
from hetcomm.plan.join import join
from hetcomm.plan.model import Model
from hetcomm.plan.profile import Profile
from hetcomm.plan.refuse import refuse


def profile(
    model: Annotated[Path, typer.Argument(help="Sizes as JSON, or Hugging Face's config.json.")],
    micro_batches: Annotated[
        str, typer.Option(help="Samples of a pass to measure, separated by commas.")
    ] = "1,2,4",
    device: Annotated[
        str | None, typer.Option(help="Name of the kind of device. Default: as in the job.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="FILE.py:FUNCTION or MODULE:FUNCTION: the layers of a hetcomm.plan.Model, "
            "as hetcomm.plan.split takes them. Default: plain ones."
        ),
    ] = None,
    tensor: Annotated[
        str, typer.Option(help="Tensor degrees to measure, by groups of a host's ranks.")
    ] = "1",
    divide: Annotated[
        str | None,
        typer.Option(
            help="FILE.py:FUNCTION or MODULE:FUNCTION: divides one of --layers over a tensor mesh, "
            "as hetcomm.plan.split takes it."
        ),
    ] = None,
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens of a sample.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("profile.json"),
    add: Annotated[
        Path | None, typer.Option(help="A profile whose other devices are written, too.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Of each measurement, about; slow layers take longer.")
    ] = 1.0,
    progress: Progress = True,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a rank waits for one measurement of another.")
    ] = 600.0,
) -> None:
    """Measure the layers of a model on each kind of device, for `hetcomm plan`.

    Alone it measures this machine's device. As the command of a job (torchrun --no-python, mpiexec,
    srun, hetcomm emulate) one host of each kind of device measures, one kind after another. Start
    it as the training starts, so ranks have the same processors and memory. Exits with 0 for
    success, 1 if a rank failed, 2 if the request cannot be measured.
    """
    if importlib.util.find_spec("torch") is None:
        refuse("profile", "torch, whose layers are measured", "none", "pip install torch")
    from hetcomm.plan.measure.job import measure
    from hetcomm.plan.measure.layers import divide as divide_plain
    from hetcomm.plan.measure.layers import load, plain
    from hetcomm.plan.measure.measurement import Effort
    from hetcomm.plan.measure.show import sentences, tables

    sizes = Model.load(model, sequence)
    make = plain if layers is None else load(layers)
    degrees = tuple(sorted({1, *_numbers("--tensor", tensor)}))
    if (layers is None) != (divide is None) and (len(degrees) > 1 or layers is None):
        expected = "both --layers and --divide for tensor degrees above 1, or none of these"
        refuse("--divide", expected, divide or layers, "give the other one, too")
    effort = Effort(_numbers("--micro-batches", micro_batches), seconds, degrees)
    by = divide_plain if divide is None else load(divide, "--divide")
    check_folder("--out: ", out)
    before = None if add is None else Profile.load(add)
    if before is not None and before.model != sizes:
        join([before, Profile(sizes, {}, ())])  # says what differs, before anything is measured
    found: list[tuple[Profile, list[str]]] = []
    job = rendezvous.job_of(os.environ)
    reports = job is None or job.rank == 0
    page = Page(progress and reports)

    def work(control: ControlChannel, tell: Any) -> None:
        found.append(measure(sizes, effort, control, device, tell, make, by))
        control.leave()

    with page:
        if job is None:
            work(ControlChannel(_core.LocalStore(), 0, 1, timeout), page.tell)
        else:
            run_here("profile", timeout, page, work)
    if not reports:
        return
    (measured, left_out), *_ = found
    whole = measured
    if before is not None:
        whole = join([before.without(measured.devices), measured])
    with writing("--out", out):
        whole.save(out)
    console = output()
    for table in tables(measured):
        console.print(table)
    for sentence in (*sentences(measured), *(f"Left out: {each}." for each in left_out)):
        console.print(sentence, highlight=False, soft_wrap=True)
    longer = [] if sequence is None else ["--sequence", str(sequence)]
    use = quoted(["hetcomm", "plan", "CLUSTER.toml", str(model), "--profile", str(out), *longer])
    typer.echo(f"Written: {out}; use it with {use}")


def _numbers(option: str, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        refuse(option, "numbers such as 1,2,4", text, "write numbers of at least 1")
    return tuple(sorted({int(word) for word in words}))
