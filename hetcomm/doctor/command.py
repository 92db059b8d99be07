"""`hetcomm doctor`: run before a job, under its launcher or alone."""

from __future__ import annotations

import os
from json import dumps
from typing import Annotated

import typer
from rich.console import Console

from hetcomm.doctor.diagnosis import diagnose
from hetcomm.doctor.finding import Severity
from hetcomm.doctor.gather import gather
from hetcomm.doctor.page import describe, render
from hetcomm.pages import print_page


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for other ranks.")
    ] = 30.0,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
) -> None:
    """Find what will make a job fail or run slowly, with the exact fixes.

    Exits with 0 without errors, 1 with errors, 2 for bad use.
    """
    cluster = gather(os.environ, timeout)
    if cluster is None:
        return
    findings = diagnose(cluster)
    if json:
        typer.echo(dumps(describe(cluster, findings), indent=2))
    else:
        print_page(Console(), render(cluster, findings))
    worst = Severity.warning if strict else Severity.error
    if any(each.severity <= worst for each in findings):
        raise typer.Exit(1)
