"""Where the time of a run goes: by folder, and by file.

Each run writes the times of its tests into build/times.json, and ends with a table by folder.
Folders that grew since tests/times.toml are named. `python tests/running/times.py` makes the last
whole run the stored one, with the table of CONTRIBUTING.md; `--files` prints the files of the last
run. tests/times.toml has what a case of each costly test costs, by which sampled.py chooses, and
what the cheap tests of a folder cost. Its seconds are those of the machine that stored first.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
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
NOTABLE = 10.0  # seconds; a shorter folder may grow by any factor
COSTLY = 2.0  # seconds of all cases of a test; a cheaper one counts to the rest of its folder
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
        """Seconds of a processor, or of a worker's wait beside other workers."""
        return max(self.processor, self.worker / PER_PROCESSOR)

    @property
    def case(self) -> float:
        """The cost of one case."""
        return self.cost / max(self.tests, 1)


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
        for line in grown(self.tests, ROOT / STORED):
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
    """By test function, what one of its cases costs; see Times.case."""
    return stored(file, "case")


def speed(tests: dict[str, Times], before: dict[str, float]) -> float:
    """The median factor of the costs of tests: what this machine takes longer."""
    now = grouped(tests.items(), function_of)
    factors = [
        now[name].case / seconds
        for name, seconds in before.items()
        if name in now and now[name].tests and seconds > 0
    ]
    return statistics.median(factors) if factors else 1.0


def grown(tests: dict[str, Times], file: Path) -> list[str]:
    """A line for each folder that costs over 20 % more than the stored costs of its tests. The
    speed of the machine, the median factor of all folders, does not count."""
    before, now = defaultdict(float, stored(file, "rest")), defaultdict[str, float](float)
    case = costs(file)
    for name, times in grouped(tests.items(), function_of).items():
        now[folder_of(name)] += times.cost
        before[folder_of(name)] += case.get(name, 0.0) * times.tests
    factors = {
        name: now[name] / seconds
        for name, seconds in before.items()
        if name in now and seconds >= NOTABLE
    }
    if len(factors) < 3:  # a run of some folders has no measure of the machine
        return []
    usual = statistics.median(factors.values())
    return [
        f"{name} takes {factor / usual:.2f} times the time of {STORED.name}"
        for name, factor in factors.items()
        if factor > GROWTH * usual
    ]


def exists(function: str) -> bool:
    file, _, name = function.partition("::")
    path = ROOT / file
    return path.exists() and f"def {name.rpartition('::')[2]}(" in path.read_text()


def new_costs(tests: dict[str, Times], before: dict[str, float]) -> dict[str, float]:
    """The costs after a run, which may have left out tests."""
    factor = speed(tests, before)
    now = {
        name: times.case / factor
        for name, times in grouped(tests.items(), function_of).items()
        if times.tests and (times.cost / factor > COSTLY or name in before)
    }
    return {name: cost for name, cost in (before | now).items() if exists(name)}


def rests(tests: dict[str, Times], factor: float, case: Container[str]) -> dict[str, float]:
    """By folder, the cost of the tests whose cases have no cost of their own."""
    sums: dict[str, float] = defaultdict(float)
    for name, times in grouped(tests.items(), function_of).items():
        sums[folder_of(name)] += 0.0 if name in case else times.cost / factor
    return sums


def rows(title: str, values: dict[str, float]) -> str:
    return "\n".join([f"[{title}]", *(f'"{name}" = {values[name]:.2f}' for name in sorted(values))])


def store(tests: dict[str, Times]) -> None:
    file = ROOT / STORED
    before = costs(file)
    case = new_costs(tests, before)
    rest = rests(tests, speed(tests, before), case)
    file.write_text(
        "# Costs of the cheap tests of a folder, and of one case of any other test, in seconds:\n"
        f"# python tests/running/times.py\n{rows('rest', rest)}\n\n{rows('case', case)}\n"
    )
    folders = grouped(tests.items(), folder_of)
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
