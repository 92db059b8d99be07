"""Shows a training while it runs, by following the file its trainer writes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hetcomm.demo.training import read_lines

LOOK_EVERY_SECONDS = 0.25


@contextmanager
def following(console: Console, metrics: Path, title: str, steps: int) -> Iterator[None]:
    """A progress bar while the block runs; nothing where the output is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[latest]}"),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(title, total=steps, latest="starting the ranks")
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(LOOK_EVERY_SECONDS):
            records = [line for line in read_lines(metrics) if "step" in line]
            if records:
                last = records[-1]
                latest = f"loss {last['loss']:.3f}  {last['seconds'] * 1e3:.0f} ms"
                bar.update(task, completed=len(records), latest=latest)

    with bar:
        follower = threading.Thread(target=follow, name="demo progress", daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()
