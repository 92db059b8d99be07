"""PyTorch's distributed suite on gloo and on hetcomm, side by side.

    python tests/torch_suite/compare.py [--world-size 2 --world-size 3 ...] [--test NAME ...]
                                        [--report FILE] [--store]

hetcomm runs the suite in gloo's place and under its own name. A test that fails under both names
runs once more as "custom", see one_backend.py. The report lists skipped tests with the reason. The
command exits with 1 if a test passes on gloo and fails on hetcomm. Tests that compare the name and
pass under another name are excepted.

gloo's outcomes depend on torch alone. gloo.json has them by torch's version and number of ranks.
They are compared with the outcomes of this run; --store writes the new ones.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import one_backend
import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
STORED = HERE / "gloo.json"
BOUND = 1500  # seconds for one backend and world size; 100 to 200 are usual

Outcomes = dict[str, tuple[str, str]]  # test -> "passed", "failed" or "skipped", and the reason
Row = tuple[str, ...]  # ranks, backend, passed, failed, skipped


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same tests on both backends. hetcomm runs under the names that the suite knows."""

    world_size: int
    gloo: Outcomes
    as_gloo: Outcomes
    own_name: Outcomes = field(default_factory=dict)
    custom: Outcomes = field(default_factory=dict)
    whole_own_name: bool = False  # else only tests that failed in gloo's place ran so

    def by_name(self) -> dict[str, Outcomes]:
        return {"gloo": self.as_gloo, "hetcomm": self.own_name, "custom": self.custom}

    @property
    def depends_on_name(self) -> dict[str, str]:
        """Tests that fail because they compare the name, and pass under another name."""
        found = {}
        for test in self.as_gloo | self.own_name:
            outcomes = {by: ran[test] for by, ran in self.by_name().items() if test in ran}
            passes = [by for by, (outcome, _) in outcomes.items() if outcome == "passed"]
            fails = {by: compared(why) for by, (what, why) in outcomes.items() if what == "failed"}
            if fails and passes and all(fails.values()):
                reasons = (f"as {by} ({why})" for by, why in fails.items())
                found[test] = f"passes as {' and '.join(passes)}, fails {' and '.join(reasons)}"
        return found

    @property
    def behind(self) -> dict[str, str]:
        """Tests that pass on gloo only, with their outcomes on hetcomm."""
        found, not_run, depends = {}, ("not run", ""), self.depends_on_name
        for test, (outcome, _) in self.gloo.items():
            if outcome != "passed" or test in depends:
                continue
            in_place, own = self.as_gloo.get(test, not_run), self.own_name.get(test, not_run)
            if in_place[0] != "passed":
                found[test] = f"in gloo's place, {': '.join(in_place)}"
            elif own[0] == "failed":
                found[test] = f"under its own name, {': '.join(own)}"
        return found

    @property
    def skipped_by_own_name(self) -> Outcomes:
        """Tests that run in gloo's place and are skipped under the own name, with torch's
        reason."""
        return {
            name: outcome
            for name, outcome in self.own_name.items()
            if outcome[0] == "skipped" and self.as_gloo[name][0] != "skipped"
        }


def compared(failure: str) -> str:
    """The comparison of two names that failed a test; empty if another assertion failed."""
    name = "'(?:gloo|hetcomm|custom)'"
    found = re.search(f"String comparison failed: ({name} != {name})\n", failure)
    return found[1] if found else ""


def run(backend: str, world_size: int, name: str, tests: list[str]) -> Outcomes:
    """Outcomes of the suite. If the suite did not finish, raises RuntimeError with the end of its
    output."""
    command = [sys.executable, str(HERE / "one_backend.py"), backend, str(world_size), name, *tests]
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
            return {test: (outcome, why) for test, (outcome, why) in found.items()}
    raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")


def stored_gloo(world_size: int) -> Outcomes | None:
    """The stored outcomes of gloo with this torch; None if there are none."""
    found = json.loads(STORED.read_text()).get(version(), {}).get(str(world_size))
    return found and {test: (outcome, "") for test, outcome in found.items()}


def store_gloo(world_size: int, gloo: Outcomes) -> None:
    content = json.loads(STORED.read_text())
    outcomes = {test: outcome for test, (outcome, _) in sorted(gloo.items())}
    content.setdefault(version(), {})[str(world_size)] = outcomes
    STORED.write_text(json.dumps(content, indent=1) + "\n")


def differences(stored: Outcomes, seen: Outcomes) -> list[str]:
    none = ("absent", "")
    return [
        f"{test}: stored as {stored.get(test, none)[0]}, now {seen.get(test, none)[0]}"
        for test in sorted(stored | seen)
        if stored.get(test, none)[0] != seen.get(test, none)[0]
    ]


def compare(
    world_size: int, tests: list[str], whole_own_name: bool, gloo: Outcomes | None = None
) -> Comparison:
    """Runs all tests side by side. Runs gloo too, unless `gloo` has its outcomes."""
    if gloo is None:
        gloo = run("gloo", world_size, "gloo", tests)
    as_gloo = run("hetcomm", world_size, "gloo", tests)
    again = list(Comparison(world_size, gloo, as_gloo).behind)
    own_name: Outcomes = {}
    if whole_own_name or again:
        own_name = run("hetcomm", world_size, "hetcomm", tests if whole_own_name else again)
    again = list(Comparison(world_size, gloo, as_gloo, own_name).behind)
    custom = run("hetcomm", world_size, "custom", again) if again else {}
    return Comparison(world_size, gloo, as_gloo, own_name, custom, whole_own_name)


def counts(one: Comparison) -> list[Row]:
    """A row for each backend and name with which the whole suite ran."""
    runs = {"gloo": one.gloo, "hetcomm, in gloo's place": one.as_gloo}
    if one.whole_own_name:
        runs["hetcomm, own name"] = one.own_name
    rows = []
    for backend, outcomes in runs.items():
        found = Counter(outcome for outcome, _ in outcomes.values())
        figures = (str(found[kind]) for kind in ("passed", "failed", "skipped"))
        rows.append((str(one.world_size), backend, *figures))
    return rows


def table(comparisons: list[Comparison]) -> Table:
    table = Table("ranks", "backend", "passed", "failed", "skipped")
    for one in comparisons:
        for row in counts(one):
            table.add_row(*row)
    return table


def report(comparisons: list[Comparison]) -> str:
    """Counts, tests that depend on the name, and skips by reason, as Markdown."""
    behind = sorted({name for one in comparisons for name in one.behind})
    depends = {name: why for one in comparisons for name, why in one.depends_on_name.items()}
    lines = [
        "# PyTorch's distributed suite", "",
        f"{version()}, on one host. Written by `make torch-suite`, not by hand.", "",
        "The suite skips tests by the backend's name. So the unedited suite runs on hetcomm twice:",
        "in gloo's place, and under hetcomm's own name.", "",
        "| ranks | backend | passed | failed | skipped |", "|---|---|---|---|---|",
        *(markdown(row) for one in comparisons for row in counts(one)), "",
        f"Passed on gloo and not on hetcomm: {', '.join(behind) or 'none'}.", "",
        "These tests fail only in a comparison of names. DDP's log calls every plug-in \"custom\".",
        "Registered under that name, the same backend passes:", "",
        *(f"- `{name}`: {why}" for name, why in sorted(depends.items())), "",
        "Skipped in gloo's place, by torch's reason (with the number of ranks, unless always):", "",
        *skips({one.world_size: one.as_gloo for one in comparisons}), "",
        "Skipped in addition under the own name:", "",
        *skips({one.world_size: one.skipped_by_own_name for one in comparisons}),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def version() -> str:
    import torch

    return f"torch {torch.__version__}"


def markdown(row: Row) -> str:
    return f"| {' | '.join(row)} |"


def in_order(names: str) -> str:
    return ", ".join(sorted(names.split(", ")))


def skips(runs: dict[int, Outcomes]) -> list[str]:
    """One line for each reason. `runs` by number of ranks."""
    reasons: dict[str, dict[str, list[int]]] = {}
    for size, outcomes in runs.items():
        for name, (outcome, why) in outcomes.items():
            if outcome == "skipped":
                # Sets of names are printed in random order.
                why = re.sub("{(.*)}", lambda names: f"{{{in_order(names[1])}}}", why)
                reasons.setdefault(why, {}).setdefault(name, []).append(size)
    lines = []
    for why, tests in sorted(reasons.items()):
        names = (
            f"`{name}`" + ("" if sizes == list(runs) else f" ({', '.join(map(str, sizes))})")
            for name, sizes in sorted(tests.items())
        )
        lines.append(f"- {why}: {', '.join(names)}")
    return lines


def main(
    world_size: Annotated[list[int], typer.Option(help="ranks; may be repeated")] = [2, 3, 4],  # noqa: B006
    test: Annotated[list[str], typer.Option(help="a test's name; may be repeated")] = [],  # noqa: B006
    report_to: Annotated[Path | None, typer.Option("--report", help="a file")] = None,
    store: Annotated[bool, typer.Option(help="what gloo did")] = False,
) -> None:
    console = Console()
    comparisons = [compare(size, test, whole_own_name=True) for size in world_size]
    console.print(table(comparisons))
    if report_to is not None:
        report_to.write_text(report(comparisons))
    for one in comparisons:
        for name, text in (one.depends_on_name | one.behind).items():
            console.print(f"{one.world_size} ranks: {name}: {text}", highlight=False)
    changed = []
    for one in comparisons if not test else []:
        if store:
            store_gloo(one.world_size, one.gloo)
        elif (stored := stored_gloo(one.world_size)) is not None:
            changed += differences(stored, one.gloo)
    if changed:
        console.print("gloo.json differs; --store writes it anew:", *changed, sep="\n")
    raise typer.Exit(1 if changed or any(one.behind for one in comparisons) else 0)


if __name__ == "__main__":
    typer.run(main)
