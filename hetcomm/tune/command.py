"""The command line: `hetcomm tune my.profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hetcomm import _core
from hetcomm.bench.measure import Effort
from hetcomm.bench.progress import Page
from hetcomm.bench.settings import Settings, parse_sizes
from hetcomm.bench.start import ClusterFile, Order, Progress, Ranks, Start, Timeout
from hetcomm.files import check_folder
from hetcomm.tune.measure import COLLECTIVES, run
from hetcomm.tune.table import show

LADDER = "16:64M:4"
SECONDS, TURNS, WARMUP = 0.06, 5, 2


def settings_of(sizes: str, seconds: float = SECONDS, timeout: float = 60.0) -> Settings:
    effort = Effort(seconds, warmup=WARMUP, turns=TURNS, check=False)
    return Settings(
        COLLECTIVES,
        ("hetcomm",),
        parse_sizes(sizes),
        effort=effort,
        timeout=timeout,
        program="hetcomm.tune.measure",
    )


class Result(Page):
    """Also keeps the profile, the last event."""

    profile = ""

    def tell(self, event: dict[str, Any]) -> None:
        super().tell(event)
        self.profile = event.get("profile", self.profile)


def tune(
    output: Annotated[Path, typer.Argument(help="The file to write.")] = Path("hetcomm.profile"),
    sizes: Annotated[
        str, typer.Option(help="Sizes to measure: from:to:factor, or a list 64,4k,1M.")
    ] = LADDER,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Seconds of timed calls, per collective and size.")
    ] = SECONDS,
    ranks: Ranks = None,
    cluster: ClusterFile = None,
    order: Order = None,
    progress: Progress = True,
    timeout: Timeout = 60.0,
) -> None:
    """Measure islands and links, and write a profile for predictions.

    As the command of a job (torchrun --no-python, mpiexec, srun, hetcomm emulate) it measures the
    job's ranks. Otherwise it starts ranks on this host, or on an emulated cluster. With
    HETCOMM_PROFILE set to the file on every rank, a job chooses plans by the profile. Exits with 0
    for success, 1 if a rank failed, 2 if the request cannot be measured.
    """
    settings = settings_of(sizes, seconds, timeout)
    if len(settings.sizes) < 2:
        raise _core.InvalidArgumentError(
            f'--sizes: expected at least 2, got "{sizes}"; a curve has two points'
        )
    start = Start("tune", ranks, cluster, order)
    check_folder("", output)
    page = Result(progress and start.reports)
    start.run(settings, page, run)
    if start.reports:
        output.write_text(page.profile)
        show(_core.Profile(page.profile))
        typer.echo(f"Written: {output}; use it with HETCOMM_PROFILE={output.absolute()}")
