"""The command line: `hetcomm bench all_reduce --backend hetcomm --backend gloo`."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hetcomm import _core, rendezvous
from hetcomm.bench import launch, rank
from hetcomm.bench.backends import family_of
from hetcomm.bench.case import KINDS
from hetcomm.bench.error import BenchError
from hetcomm.bench.gap import Gap
from hetcomm.bench.measure import Effort
from hetcomm.bench.meeting import Meeting
from hetcomm.bench.progress import Page
from hetcomm.bench.settings import Settings, distinct, parse_sizes
from hetcomm.bench.table import FORMATS, json_text, show, write
from hetcomm.emulate import ClusterError, load
from hetcomm.emulate.cluster import parse_order

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
    ranks: Annotated[
        int | None, typer.Option(help="To start on this host (default: a rank per core).")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Start the ranks of this emulated cluster instead.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="block, interleaved, random:SEED or host,host,... with --cluster."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda ...: whose memory torch's backends use.")
    ] = "",
    output: Annotated[
        list[Path] | None, typer.Option(help="FILE.json, FILE.csv or FILE.png; repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    progress: Annotated[bool, typer.Option(help="Show what is being measured.")] = True,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a rank waits for the others.")
    ] = 60.0,
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
    job = rendezvous.job_of(os.environ)
    check_options(settings, files, job, ranks, cluster, order)
    page = Page(progress and not json and (job is None or job.rank == 0))
    run_ranks("bench", settings, page, job, ranks, cluster, order)
    if job is None or job.rank == 0:
        finish(page, files, json)


def check_options(
    settings: Settings,
    files: list[Path],
    job: rendezvous.Job | None,
    ranks: int | None,
    cluster: Path | None,
    order: str | None,
) -> None:
    """What can be known before any rank starts. Raises InvalidArgumentError."""

    def refuse(why: str) -> None:
        raise _core.InvalidArgumentError(why)

    for name in settings.backends:
        family_of(name)
    for file in files:
        if file.suffix not in FORMATS:
            refuse(f"--output: expected a name with {', '.join(FORMATS)}; got {file}")
        if not file.absolute().parent.is_dir():
            refuse(f"--output: expected a folder {file.absolute().parent}, there is none; make it")
    if job is not None and (ranks is not None or cluster is not None):
        refuse("--ranks and --cluster start ranks, but a launcher has started them; leave them out")
    if ranks is not None and cluster is not None:
        refuse("expected one of --ranks and --cluster, got both; leave one out")
    if order is not None and cluster is None:
        refuse("--order needs --cluster")
    size = job.size if job is not None else ranks
    settings.cases(2 if size is None else size)


def run_ranks(
    command: str,
    settings: Settings,
    page: Page,
    job: rendezvous.Job | None,
    ranks: int | None,
    cluster: Path | None,
    order: str | None,
    work: rank.Work = rank.run,
) -> None:
    """As a rank of the job, on the emulated cluster or on this host. A failure ends the command."""
    try:
        with page:
            if job is not None:
                run_here(command, settings, page, work)
            elif cluster is not None:
                on_cluster(settings, cluster, order, page)
            else:
                start(settings, ranks or max(len(os.sched_getaffinity(0)), 2), page)
    except (BenchError, ClusterError, _core.Error) as error:
        if isinstance(error, _core.InvalidArgumentError):
            raise
        typer.echo(f"hetcomm {command}: {error}", err=True)
        status = 2 if isinstance(error, ClusterError) else rank.EXIT_FAILED
        raise typer.Exit(status) from None


def run_here(command: str, settings: Settings, page: Page, work: rank.Work) -> None:
    """As a rank of a job. What another rank has told all of is said by rank 0 alone."""
    meeting = Meeting.of_job(os.environ, settings.timeout)
    assert meeting is not None
    try:
        work(settings, meeting, page.tell if meeting.rank == 0 else lambda event: None)
    except (_core.Error, BenchError) as error:
        status = rank.status_of(error)
        if meeting.rank == 0 or not meeting.told:
            print(f"hetcomm {command}: {error}", file=sys.stderr, flush=True)
        meeting.leave() if meeting.told else meeting.abandon(status)
        raise typer.Exit(status) from None


def on_cluster(settings: Settings, file: Path, order: str | None, page: Page) -> None:
    described = load(file)
    if order is not None:
        described = dataclasses.replace(described, order=parse_order(order))
    settings.cases(described.ranks)
    launch.on_cluster(settings, described, page.tell)


def start(settings: Settings, ranks: int, page: Page) -> None:
    settings.cases(ranks)
    begin = launch.by_mpiexec if launch.uses_mpi(settings) else launch.on_this_host
    begin(settings, ranks, page.tell)


def finish(page: Page, files: list[Path], json: bool) -> None:
    """Shows and writes the results."""
    if json:
        typer.echo(json_text(page.facts, page.rows), nl=False)
    else:
        # What is no terminal has no width, and must not lose a column.
        width = None if sys.stdout.isatty() else 140
        show(Console(width=width), page.facts, page.rows)
    for file in files:
        write(file, page.facts, page.rows)
        if not json:
            typer.echo(f"Written: {file}")
