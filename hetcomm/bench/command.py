"""The command line: `hetcomm bench all_reduce --backend hetcomm --backend gloo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetcomm import _core
from hetcomm.bench.backends import family_of
from hetcomm.bench.case import KINDS
from hetcomm.bench.gap import Gap
from hetcomm.bench.measure import Effort
from hetcomm.bench.progress import Page
from hetcomm.bench.settings import Settings, distinct, parse_sizes
from hetcomm.bench.start import (
    ClusterFile,
    Order,
    Progress,
    Ranks,
    Start,
    Timeout,
    check_folder,
    console,
)
from hetcomm.bench.table import FORMATS, json_text, show, write

_KINDS = "; ".join(f"{name}: {kind.summary}" for name, kind in KINDS.items())


def bench(
    collectives: Annotated[
        list[str] | None, typer.Argument(metavar="COLLECTIVE", help=f"{_KINDS}.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="hetcomm (its array API), mpi (by mpi4py), torch:NAME, or gloo, nccl ... for "
            "torch's of that name; repeatable, and then measured in turn."
        ),
    ] = None,
    sizes: Annotated[
        str,
        typer.Option(
            help="Bytes of the largest buffer: from:to, from:to:factor, or a list 8,4k,1M."
        ),
    ] = "8:64M",
    dtype: Annotated[list[str] | None, typer.Option(help="Of the elements; repeatable.")] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="sum, product, min, max, avg, band ...; repeatable.")
    ] = None,
    root: Annotated[int, typer.Option(help="Rank, for collectives that have one.")] = 0,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Results are written over the input.")
    ] = False,
    out_of_place: Annotated[
        bool,
        typer.Option(
            "--out-of-place",
            help="They are not. Both may be given; without any, all_reduce is in place, the rest "
            "is not.",
        ),
    ] = False,
    pause: Annotated[
        float,
        typer.Option(help="Seconds that each rank sleeps before each timed call, such as 0.001."),
    ] = 0.0,
    work: Annotated[
        float,
        typer.Option(help="Seconds that each rank works on other memory before each timed call."),
    ] = 0.0,
    warmup: Annotated[int, typer.Option(min=0, help="Untimed calls before each size.")] = 5,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Timed calls per size, instead of --seconds.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Of timed calls, per size and backend.")
    ] = 0.3,
    turns: Annotated[int, typer.Option(min=1, help="Of each backend, per size.")] = 7,
    check: Annotated[bool, typer.Option(help="Compare results of random data.")] = True,
    legs: Annotated[
        bool,
        typer.Option(
            "--legs", help="Also: time by leg, who waits for whom, bytes over the bridge."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the random data.")] = 0,
    ranks: Ranks = None,
    cluster: ClusterFile = None,
    order: Order = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda ...: whose memory torch's backends use.")
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
    among its ranks; else it starts ranks on this host, or an emulated cluster. Exits with 0 if all
    went well, 1 if a rank failed or a result was wrong, 2 for what cannot be measured.
    """
    settings = Settings(
        distinct(collectives or ["all_reduce"]),
        distinct(backend or ["hetcomm"]),
        parse_sizes(sizes),
        distinct(dtype or ["float32"]),
        distinct(op or ["sum"]),
        (True,) * in_place + (False,) * out_of_place or (None,),
        root,
        Effort(seconds, iterations, warmup, turns, check, legs, Gap(pause, work)),
        device,
        timeout,
        seed,
    )
    files = output or []
    start = Start("bench", ranks, cluster, order)
    check_options(settings, files)
    page = Page(progress and not json and start.reports)
    start.run(settings, page)
    if start.reports:
        finish(page, files, json)


def check_options(settings: Settings, files: list[Path]) -> None:
    """Checks what is known before any rank starts. Raises InvalidArgumentError."""
    for name in settings.backends:
        family_of(name)
    for file in files:
        if file.suffix not in FORMATS:
            raise _core.InvalidArgumentError(
                f"--output: expected a name with {', '.join(FORMATS)}; got {file}"
            )
        check_folder("--output: ", file)


def finish(page: Page, files: list[Path], json: bool) -> None:
    """Shows and writes the results."""
    if json:
        typer.echo(json_text(page.facts, page.rows), nl=False)
    else:
        show(console(), page.facts, page.rows)
    for file in files:
        write(file, page.facts, page.rows)
        if not json:
            typer.echo(f"Written: {file}")
