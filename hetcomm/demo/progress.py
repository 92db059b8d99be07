"""Shows a training while it runs, from the file of its metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hetcomm.demo.training import read_lines
from hetcomm.timing import calling_every

POLL_SECONDS = 0.25


@contextmanager
def following(console: Console, metrics: Path, title: str, steps: int) -> Iterator[None]:
    """A progress bar while the block runs; only on a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[latest]}"),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(title, total=steps, latest="starting the ranks")

    def update() -> None:
        records = [line for line in read_lines(metrics) if "step" in line]
        if records:
            last = records[-1]
            latest = f"loss {last['loss']:.3f}  {last['seconds'] * 1e3:.0f} ms"
            bar.update(task, completed=len(records), latest=latest)

    with bar, calling_every(POLL_SECONDS, update):
        yield
