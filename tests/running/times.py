"""Where the time of a run goes: by folder, and by file.

Each run writes the times of its tests into build/times.json, and ends with a table by folder.
Folders that grew since tests/times.toml are named. `python tests/running/times.py` makes the last
whole run the stored one, with the table of CONTRIBUTING.md; `--files` prints the files of the last
run. The stored run also has what a case of each costly test costs, by which sampled.py chooses.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAST = ROOT / "build" / "times.json"
STORED = Path("tests/times.toml")
PAGE = ROOT / "CONTRIBUTING.md"
GROWTH = 1.2  # of a folder against all folders; less is noise of the machine
NOTABLE = 10.0  # processor seconds; a shorter folder may grow by any factor
COSTLY = 2.0  # seconds of all cases of a test; what cheaper tests cost is not stored
PER_PROCESSOR = 2  # workers
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Times:
    """Of some tests: their count, seconds on a worker, seconds of processors."""

    tests: int = 0
    worker: float = 0.0
    processor: float = 0.0

    def add(self, other: Times) -> None:
        self.tests += other.tests
        self.worker += other.worker
        self.processor += other.processor

    @property
    def cost(self) -> float:
        """Seconds of a processor, or of a worker's wait beside other workers, for one case."""
        return max(self.processor, self.worker / PER_PROCESSOR) / max(self.tests, 1)


def processor_seconds(pid: int) -> float:
    """Of a process, its ended children, and all living descendants."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    children: list[str] = []
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            children += (task / "children").read_text().split()
    own = sum(map(int, fields[11:15])) / TICKS
    return own + sum(processor_seconds(int(child)) for child in children)


class TestTimes:
    """The plugin of one run, or of one worker of it."""

    __test__ = False

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.before = processor_seconds(os.getpid())
        self.tests: dict[str, Times] = defaultdict(Times)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        now = processor_seconds(os.getpid())
        report.processor_seconds = max(0.0, now - self.before)
        self.before = now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        times = Times(
            report.when == "call", report.duration, getattr(report, "processor_seconds", 0.0)
        )
        self.tests[report.nodeid].add(times)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if hasattr(self.config, "workerinput") or not self.tests:
            return
        LAST.parent.mkdir(exist_ok=True)
        whole = self.config.args_source == pytest.Config.ArgsSource.TESTPATHS
        tests = {name: vars(times) for name, times in self.tests.items()}
        LAST.write_text(json.dumps({"whole": whole, "tests": tests}))
        folders = grouped(self.tests.items(), folder_of)
        terminalreporter.section("times by folder")
        for line in table(folders):
            terminalreporter.write_line(line)
        for line in grown(folders, stored(ROOT / STORED, "processor")):
            terminalreporter.write_line(line, yellow=True)


def folder_of(test: str) -> str:
    return "/".join(test.split("/")[:2])


def function_of(test: str) -> str:
    return test.partition("[")[0]


def file_of(test: str) -> str:
    return test.split("::")[0]


def grouped(tests: Iterable[tuple[str, Times]], group: Any) -> dict[str, Times]:
    """The sums by `group(test)`, greatest first."""
    sums: dict[str, Times] = defaultdict(Times)
    for name, times in tests:
        sums[group(name)].add(times)
    return dict(sorted(sums.items(), key=lambda item: -item[1].processor))


def table(groups: dict[str, Times]) -> list[str]:
    """Lines of a Markdown table."""
    everything = Times()
    for times in groups.values():
        everything.add(times)
    lines = ["| tests | count | seconds on a worker | of a processor |", "|---|---|---|---|"]
    for name, times in [*groups.items(), ("all", everything)]:
        lines.append(f"| {name} | {times.tests} | {times.worker:.0f} | {times.processor:.0f} |")
    return lines


def stored(file: Path, part: str) -> dict[str, float]:
    return tomllib.loads(file.read_text()).get(part, {}) if file.exists() else {}


def costs(file: Path) -> dict[str, float]:
    """By test function, what one of its cases costs; see Times.cost."""
    return stored(file, "case")


def grown(now: dict[str, Times], before: dict[str, float]) -> list[str]:
    """A line for each folder that grew by more than 20 %. The speed of the machine, the median
    factor of all folders, does not count."""
    factors = {
        name: now[name].processor / seconds
        for name, seconds in before.items()
        if name in now and seconds >= NOTABLE
    }
    if len(factors) < 3:  # a run of some folders has no measure of the machine
        return []
    usual = statistics.median(factors.values())
    return [
        f"{name} takes {factor / usual:.2f} times the processor time of {STORED.name}"
        for name, factor in factors.items()
        if factor > GROWTH * usual
    ]


def exists(function: str) -> bool:
    file, _, name = function.partition("::")
    path = ROOT / file
    return path.exists() and f"def {name.rpartition('::')[2]}(" in path.read_text()


def new_costs(tests: dict[str, Times], before: dict[str, float]) -> dict[str, float]:
    """The costs after a run, which may have left out tests."""
    now = {
        name: times.cost
        for name, times in grouped(tests.items(), function_of).items()
        if times.tests and (times.cost * times.tests > COSTLY or name in before)
    }
    return {name: cost for name, cost in (before | now).items() if exists(name)}


def rows(title: str, values: dict[str, float]) -> str:
    return "\n".join([f"[{title}]", *(f'"{name}" = {values[name]:.2f}' for name in sorted(values))])


def store(tests: dict[str, Times]) -> None:
    folders = grouped(tests.items(), folder_of)
    file = ROOT / STORED
    processor = {name: times.processor for name, times in folders.items()}
    file.write_text(
        "# Seconds of processors by folder, and the cost of one case of a test:\n"
        "# python tests/running/times.py\n"
        f"{rows('processor', processor)}\n\n{rows('case', new_costs(tests, costs(file)))}\n"
    )
    block = "\n".join(["<!-- times -->", *table(folders), "<!-- /times -->"])
    page = re.sub(r"<!-- times -->.*<!-- /times -->", block, PAGE.read_text(), flags=re.DOTALL)
    PAGE.write_text(page)


def main() -> None:
    last = json.loads(LAST.read_text())
    tests = {name: Times(**times) for name, times in last["tests"].items()}
    if "--files" in sys.argv:
        print("\n".join(table(grouped(tests.items(), file_of))))
    elif not last["whole"]:
        raise SystemExit("expected the times of all tests, got those of a part: run `make test`")
    else:
        store(tests)


if __name__ == "__main__":
    main()
