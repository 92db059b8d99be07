"""Where the time of a run goes: by folder, and by file.

Each run writes the times of its tests into build/times.json, and ends with a table by folder.
Folders that grew since tests/times.toml are named. `python tests/running/times.py` makes the last
whole run the stored one, with the table of CONTRIBUTING.md; `--files` prints the files of the last
run.
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
STORED = ROOT / "tests" / "times.toml"
PAGE = ROOT / "CONTRIBUTING.md"
GROWTH = 1.2  # of a folder against all folders; less is noise of the machine
NOTABLE = 10.0  # processor seconds; a shorter folder may grow by any factor
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
        for line in grown(folders, stored()):
            terminalreporter.write_line(line, yellow=True)


def folder_of(test: str) -> str:
    return "/".join(test.split("/")[:2])


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


def stored() -> dict[str, float]:
    return tomllib.loads(STORED.read_text())["processor"] if STORED.exists() else {}


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


def store(folders: dict[str, Times]) -> None:
    lines = [f'"{name}" = {times.processor:.1f}' for name, times in sorted(folders.items())]
    text = "# Seconds of processors by folder: python tests/running/times.py\n[processor]\n"
    STORED.write_text(text + "\n".join(lines) + "\n")
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
        store(grouped(tests.items(), folder_of))


if __name__ == "__main__":
    main()
