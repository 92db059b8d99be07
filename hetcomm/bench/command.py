"""The command line: `hetcomm bench all_reduce --backend hetcomm --backend gloo`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hetcomm import _core
from hetcomm.bench.backends import family_of, usual_codec
from hetcomm.bench.case import KINDS
from hetcomm.bench.data import GRADIENTS, check_data, gradients_file
from hetcomm.bench.error import BenchError
from hetcomm.bench.gap import Gap
from hetcomm.bench.measure import Effort
from hetcomm.bench.progress import Page
from hetcomm.bench.rank import EXIT_FAILED
from hetcomm.bench.settings import Settings, distinct, parse_sizes
from hetcomm.bench.start import ClusterFile, Order, Progress, Ranks, Start, Timeout
from hetcomm.bench.table import FORMATS, json_text, show, write
from hetcomm.files import check_folder

_KINDS = "; ".join(f"{name}: {kind.summary}" for name, kind in KINDS.items())


def bench(
    collectives: Annotated[
        list[str] | None, typer.Argument(metavar="COLLECTIVE", help=f"{_KINDS}.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="hetcomm (array API), mpi (by mpi4py), torch:NAME, or gloo, nccl ... of torch; "
            "repeatable: backends then take turns."
        ),
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            help="One more backend: hetcomm with this codec between hosts, such as int8; none is "
            "one too. Repeatable."
        ),
    ] = None,
    sizes: Annotated[
        str,
        typer.Option(
            help="Bytes of the largest buffer: from:to, from:to:factor, or a list 8,4k,1M."
        ),
    ] = "8:64M",
    dtype: Annotated[
        list[str] | None, typer.Option(help="Dtype of the elements; repeatable.")
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="sum, product, min, max, avg, band ...; repeatable.")
    ] = None,
    root: Annotated[int, typer.Option(help="Root rank, for rooted collectives.")] = 0,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Results overwrite the input.")
    ] = False,
    out_of_place: Annotated[
        bool,
        typer.Option(
            "--out-of-place",
            help="Results have their own buffer. Both may be given; by default only all_reduce "
            "without codec and --data is in place.",
        ),
    ] = False,
    pause: Annotated[
        float,
        typer.Option(help="Seconds of sleep before each timed call, such as 0.001."),
    ] = 0.0,
    work: Annotated[
        float,
        typer.Option(help="Seconds of work on other memory before each timed call."),
    ] = 0.0,
    warmup: Annotated[int, typer.Option(min=0, help="Untimed calls before each size.")] = 5,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Timed calls per size, instead of --seconds.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Seconds of timed calls, per size and backend.")
    ] = 0.3,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each backend, per size.")] = 7,
    check: Annotated[bool, typer.Option(help="Check results of random data.")] = True,
    legs: Annotated[
        bool,
        typer.Option(
            "--legs", help="Also show time by leg, waits for each rank, bytes over the bridge."
        ),
    ] = False,
    data: Annotated[
        str,
        typer.Option(
            help="FILE.npz: elements of its last array, repeated, instead of random ones. "
            "gradients: those of the demo's model."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random data.")] = 0,
    ranks: Ranks = None,
    cluster: ClusterFile = None,
    order: Order = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda ...: the device of torch's backends.")
    ] = "",
    output: Annotated[
        list[Path] | None, typer.Option(help="FILE.json, FILE.csv or FILE.png; repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    progress: Progress = True,
    timeout: Timeout = 60.0,
) -> None:
    """Measure collectives and messages of one or more backends, side by side, and check them.

    As the command of a job (torchrun --no-python, mpiexec, srun, hetcomm emulate) it measures
    the job's ranks. Otherwise it starts ranks on this host, or on an emulated cluster. Exits with 0
    for success, 1 if a rank failed or a result was wrong, 2 if the request cannot be measured.
    """
    start = Start("bench", ranks, cluster, order)
    encodes = bool(codec) or usual_codec() != "none"
    # Timed reductions in place are of zeros, which a codec makes small.
    place = False if encodes or data else None
    settings = Settings(
        distinct(collectives or ["all_reduce"]),
        distinct([*(backend or ["hetcomm"]), *(f"hetcomm:{name}" for name in codec or [])]),
        parse_sizes(sizes),
        distinct(dtype or ["float32"]),
        distinct(op or ["sum"]),
        (True,) * in_place + (False,) * out_of_place or (place,),
        root,
        Effort(seconds, iterations, warmup, turns, check, legs, Gap(pause, work)),
        device,
        timeout,
        seed,
        data,
    )
    files = output or []
    check_options(settings, files)
    if in_place and (encodes or data):
        check_places(settings)
    settings = with_data(settings)
    page = Page(progress and not json and start.reports)
    start.run(settings, page)
    if start.reports:
        finish(page, files, json)


def check_options(settings: Settings, files: list[Path]) -> None:
    """Checks settings and files before any rank starts. Raises InvalidArgumentError."""
    for name in settings.backends:
        family_of(name)
    for file in files:
        if file.suffix not in FORMATS:
            raise _core.InvalidArgumentError(
                f"--output: expected a name with {', '.join(FORMATS)}; got {file}"
            )
        check_folder("--output: ", file)


def check_places(settings: Settings) -> None:
    """Raises InvalidArgumentError for reductions in place. A sum in place would grow from call to
    call, so its timed calls are of zeros."""
    for name in settings.collectives:
        if name in KINDS and KINDS[name].reduces:
            raise _core.InvalidArgumentError(
                f"--in-place: expected {name} out of place with a codec or --data, because timed "
                "calls in place reduce zeros; leave --in-place out"
            )


def with_data(settings: Settings) -> Settings:
    """With the absolute path of the data, which are made if they are the gradients."""
    if not settings.data:
        return settings
    check_data(settings)
    file = Path(settings.data)
    if settings.data == GRADIENTS:
        try:
            file = gradients_file(lambda text: typer.echo(f"hetcomm bench: {text}", err=True))
        except BenchError as error:
            typer.echo(f"hetcomm bench: {error}", err=True)
            raise typer.Exit(EXIT_FAILED) from None
    return dataclasses.replace(settings, data=str(file.absolute()))


def finish(page: Page, files: list[Path], json: bool) -> None:
    """Shows and writes the results."""
    if json:
        typer.echo(json_text(page.facts, page.rows), nl=False)
    else:
        show(page.facts, page.rows)
    for file in files:
        write(file, page.facts, page.rows)
        if not json:
            typer.echo(f"Written: {file}")
