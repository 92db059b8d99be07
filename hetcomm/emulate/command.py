"""The command line: `hetcomm emulate cluster.toml -- python train.py`."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from hetcomm import _core
from hetcomm.files import check_folder, writing

from .cluster import load
from .error import ClusterError
from .launch import run

EXIT_FAILED, EXIT_REFUSED, EXIT_TIMED_OUT = 1, 2, 124
EXIT_INTERRUPTED = 128 + signal.SIGINT


def emulate(
    cluster_file: Annotated[
        Path, typer.Argument(metavar="CLUSTER.TOML", help="Hosts, ranks and NICs.")
    ],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What every rank runs.")
    ],
    report: Annotated[
        Path | None, typer.Option(help="Write exit codes and bytes per link here, as JSON.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="block, interleaved, random:SEED, or host,host,... one per rank."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="MASTER_PORT.")] = 29500,
    preload: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="Import MODULE once; ranks are forks. Repeatable."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="End the job after so many seconds.")
    ] = None,
) -> None:
    """Run a multi-host job on this machine: a namespace per host, links shaped by the kernel.

    Exits with 0 if every rank did, 1 if a rank failed, 2 if the cluster cannot be made, a
    module cannot be preloaded or the report cannot be written, 124 after the timeout, 130 after
    Ctrl-C.
    """
    if report is not None:
        check_folder("--report: ", report)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        cluster = load(cluster_file, order)
        result = run(cluster, command, timeout=timeout, port=port, preload=preload or ())
    except ClusterError as error:
        typer.echo(f"hetcomm emulate: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED) from None
    except KeyboardInterrupt:
        typer.echo("hetcomm emulate: interrupted; every rank was ended", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(result.table())
    typer.echo(f"hetcomm emulate: {result.verdict()}", err=not result.ok)
    if report is not None:
        try:
            with writing("--report", report):
                report.write_text(json.dumps(result.as_json(), indent=2) + "\n")
        except _core.InvalidArgumentError as error:
            typer.echo(f"hetcomm emulate: {error}", err=True)
            raise typer.Exit(EXIT_REFUSED) from None
    raise typer.Exit(EXIT_TIMED_OUT if result.timed_out else 0 if result.ok else EXIT_FAILED)
