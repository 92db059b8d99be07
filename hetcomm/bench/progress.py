"""The results so far, and a progress bar for a terminal."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hetcomm.bench.row import Row, row_of


class Page:
    """Collects the events of a run. Each event draws the bar. A thread for the bar would disturb a
    rank in the same process."""

    def __init__(self, shown: bool = False) -> None:
        self.facts: dict[str, Any] = {}
        self.rows: list[Row] = []
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not (shown and console.is_terminal and sys.stdout.isatty()),
        )
        self._task = self._bar.add_task("starting the ranks", total=None)

    def tell(self, event: dict[str, Any]) -> None:
        """See rank.run."""
        if "facts" in event:
            self.facts = event["facts"]
        elif "rows" in event:
            self.rows += [row_of(line) for line in event["rows"]]
        elif "case" in event:
            self._bar.update(
                self._task,
                description=event["case"],
                completed=event["number"],
                total=event["of"],
                refresh=True,
            )

    def __enter__(self) -> Page:
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()
