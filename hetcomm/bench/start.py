"""Where the ranks of a measuring command run: in the job at hand, on this host, or on a cluster."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hetcomm import _core, rendezvous
from hetcomm.bench import launch, rank
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.error import BenchError
from hetcomm.bench.progress import Page
from hetcomm.bench.settings import Settings
from hetcomm.emulate import ClusterError, load
from hetcomm.printable import printable

# Options of every measuring command.
Ranks = Annotated[
    int | None, typer.Option(help="Ranks to start on this host (default: one per core).")
]
ClusterFile = Annotated[Path | None, typer.Option(help="Start the ranks of this emulated cluster.")]
Order = Annotated[
    str | None,
    typer.Option(help="With --cluster: block, interleaved, random:SEED or host,host,..."),
]
Progress = Annotated[bool, typer.Option(help="Show a progress bar.")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds that a rank waits for other ranks.")]


@dataclass(frozen=True)
class Start:
    """How the ranks start. command: "bench" or "tune". Raises InvalidArgumentError."""

    command: str
    ranks: int | None
    cluster: Path | None
    order: str | None
    job: rendezvous.Job | None = dataclasses.field(
        default_factory=lambda: rendezvous.job_of(os.environ)
    )

    def __post_init__(self) -> None:
        if self.job is not None and (self.ranks is not None or self.cluster is not None):
            raise _core.InvalidArgumentError(
                "--ranks and --cluster start ranks, but a launcher has started them; leave them out"
            )
        if self.ranks is not None and self.cluster is not None:
            raise _core.InvalidArgumentError(
                "expected one of --ranks and --cluster, got both; leave one out"
            )
        if self.order is not None and self.cluster is None:
            raise _core.InvalidArgumentError("--order needs --cluster")

    @property
    def reports(self) -> bool:
        """Whether this process shows and writes the results."""
        return self.job is None or self.job.rank == 0

    def run(self, settings: Settings, page: Page, work: rank.Work = rank.run) -> None:
        """Measures on all ranks. A failure ends the command."""
        if self.cluster is None:
            settings.cases(self._size)
        try:
            with page:
                if self.job is not None:
                    run_here(
                        self.command,
                        settings.timeout,
                        page,
                        lambda control, tell: work(settings, control, tell),
                    )
                elif self.cluster is not None:
                    described = load(self.cluster, self.order)
                    settings.cases(described.ranks)
                    launch.start(settings, described, page.tell)
                else:
                    launch.start(settings, self._size, page.tell)
        except (BenchError, ClusterError, _core.Error) as error:
            if isinstance(error, _core.InvalidArgumentError):
                raise
            typer.echo(f"hetcomm {self.command}: {printable(str(error))}", err=True)
            status = 2 if isinstance(error, ClusterError) else rank.EXIT_FAILED
            raise typer.Exit(status) from None

    @property
    def _size(self) -> int:
        if self.job is not None:
            return self.job.size
        return max(len(os.sched_getaffinity(0)), 2) if self.ranks is None else self.ranks


def run_here(
    command: str, timeout: float, page: Page, work: Callable[[ControlChannel, rank.Tell], None]
) -> None:
    """Works as one rank of the launcher's job. Rank 0 alone prints a failure that all ranks know.

    timeout: seconds that a rank waits for other ranks.
    """
    control = ControlChannel.of_job(os.environ, timeout)
    assert control is not None
    try:
        work(control, page.tell if control.rank == 0 else lambda event: None)
    except (_core.Error, BenchError) as error:
        status = rank.status_of(error)
        if control.rank == 0 or not control.failure_shared:
            print(f"hetcomm {command}: {printable(str(error))}", file=sys.stderr, flush=True)
        control.leave() if control.failure_shared else control.abandon(status)
        raise typer.Exit(status) from None
