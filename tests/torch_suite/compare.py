"""PyTorch's distributed suite on gloo and on hetcomm, side by side.

    python tests/torch_suite/compare.py [--world-size 2 --world-size 3 ...] [--test NAME ...]
                                        [--report FILE]

The report lists what was skipped, and why. Exits with 1 if anything that passes on gloo does not
pass on hetcomm and is not in known.toml.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import one_backend
import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
BOUND = 1500  # seconds for one backend and world size; 100 to 200 are usual

Outcomes = dict[str, tuple[str, str]]  # test -> "passed", "failed" or "skipped", and why


def known() -> dict[str, str]:
    """Tests that pass on gloo and cannot on hetcomm, each with the reason."""
    return tomllib.loads((HERE / "known.toml").read_text())


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same tests on both backends."""

    world_size: int
    gloo: Outcomes
    hetcomm: Outcomes

    @property
    def behind(self) -> dict[str, str]:
        """What passes on gloo only, with what became of it on hetcomm."""
        return {
            name: ": ".join(self.hetcomm.get(name, ("not run", "")))
            for name, (outcome, _) in self.gloo.items()
            if outcome == "passed" and self.hetcomm.get(name, ("", ""))[0] != "passed"
        }


def run(backend: str, world_size: int, tests: list[str]) -> Outcomes:
    """Outcomes of the suite. Raises RuntimeError with the end of its output if it broke off."""
    command = [sys.executable, str(HERE / "one_backend.py"), backend, str(world_size), *tests]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=BOUND,
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(one_backend.PREFIX):
            found = json.loads(line.removeprefix(one_backend.PREFIX))
            return {name: (outcome, why) for name, (outcome, why) in found.items()}
    raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")


def compare(world_size: int, tests: list[str]) -> Comparison:
    return Comparison(
        world_size, *(run(backend, world_size, tests) for backend in ("gloo", "hetcomm"))
    )


def table(comparisons: list[Comparison]) -> Table:
    table = Table("ranks", "backend", "passed", "failed", "skipped")
    for row in counts(comparisons):
        table.add_row(*row)
    return table


def report(comparisons: list[Comparison]) -> str:
    """Counts, what only passes on gloo, and what hetcomm skips by reason, as Markdown."""
    import torch

    lines = [
        "# PyTorch's distributed suite", "",
        f"torch {torch.__version__}, on one host. Written by `make torch-suite`, not by hand.", "",
        "| ranks | backend | passed | failed | skipped |", "|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [f"| {' | '.join(row)} |" for row in counts(comparisons)]
    lines += ["", "Passed on gloo only:", ""]
    behind = sorted({name for one in comparisons for name in one.behind})
    lines += [f"- `{name}`: {known().get(name, 'unexpected')}" for name in behind]
    reasons: dict[str, dict[str, list[int]]] = {}
    for one in comparisons:
        for name, (outcome, why) in one.hetcomm.items():
            if outcome == "skipped":
                reasons.setdefault(why, {}).setdefault(name, []).append(one.world_size)
    lines += ["", "Skipped on hetcomm, by torch's reason (with the ranks, unless always):", ""]
    everywhere = [one.world_size for one in comparisons]
    for why, tests in sorted(reasons.items()):
        names = (
            f"`{name}`" + ("" if sizes == everywhere else f" ({', '.join(map(str, sizes))})")
            for name, sizes in sorted(tests.items())
        )
        lines.append(f"- {why}: {', '.join(names)}")
    return "\n".join(lines) + "\n"


def counts(comparisons: list[Comparison]) -> list[tuple[str, ...]]:
    """A row for each number of ranks and backend: both, passed, failed, skipped."""
    rows = []
    for one in comparisons:
        for backend, outcomes in (("gloo", one.gloo), ("hetcomm", one.hetcomm)):
            found = Counter(outcome for outcome, _ in outcomes.values())
            figures = (str(found[kind]) for kind in ("passed", "failed", "skipped"))
            rows.append((str(one.world_size), backend, *figures))
    return rows


def main(
    world_size: Annotated[list[int], typer.Option(help="ranks; may be repeated")] = [2, 3, 4],  # noqa: B006
    test: Annotated[list[str], typer.Option(help="a test's name; may be repeated")] = [],  # noqa: B006
    report_to: Annotated[Path | None, typer.Option("--report", help="a file")] = None,
) -> None:
    console = Console()
    comparisons = [compare(size, test) for size in world_size]
    console.print(table(comparisons))
    if report_to is not None:
        report_to.write_text(report(comparisons))
    excused = known()
    unexpected = False
    for one in comparisons:
        for name, outcome in one.behind.items():
            unexpected |= name not in excused
            reason = f"known: {excused[name]}" if name in excused else outcome
            console.print(f"{one.world_size} ranks: {name}: {reason}", highlight=False)
    raise typer.Exit(1 if unexpected else 0)


if __name__ == "__main__":
    typer.run(main)
