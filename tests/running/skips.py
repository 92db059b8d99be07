"""No test is skipped silently.

A skip that tests/skips.toml does not list fails the run. A run also fails if it skips a whole
folder that this machine could run.

Registered by tests/conftest.py. Abilities are probed once per run, before the first test.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import abilities
import installed_abilities  # noqa: F401  its probes
import kernel_abilities  # noqa: F401
import pytest


@dataclass(frozen=True)
class Permitted:
    """The list: where the lack of an ability, or another reason, may skip a test."""

    needs: dict[str, list[str]] = field(default_factory=dict)
    others: list[dict[str, Any]] = field(default_factory=list)
    folders: dict[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Permitted:
        content = tomllib.loads(path.read_text())
        unknown = set(content) - {"needs", "reason", "folders"}
        needs = content.get("needs", {})
        used = {*needs, *(one for names in content.get("folders", {}).values() for one in names)}
        unknown |= used - set(abilities.probes)
        if unknown:
            raise pytest.UsageError(f"{path}: neither a table nor an ability: {sorted(unknown)}")
        return Permitted(needs, content.get("reason", []), content.get("folders", {}))

    def objection(self, node: str, reason: str) -> str:
        """Why this skip fails the run; "" if the list permits it."""
        if ability := _ability_of(reason):
            if not abilities.survey([ability])[ability]:
                return f"this machine has the ability {ability!r}"
            listed = _among(node, self.places(ability))
            return "" if listed else f"{ability!r} is not listed for this place"
        for other in self.others:
            if fnmatchcase(reason, other["text"]):
                if not _among(node, other["where"]):
                    return "the reason is not listed for this place"
                if (below := other.get("torch_below")) and not _torch_is_below(below):
                    return f"the reason is listed for torch below {below}"
                return ""
        return "the reason is not listed"

    def places(self, ability: str) -> list[str]:
        """The places where a lack of the ability may skip tests."""
        folders = [f"{folder}/*" for folder, needed in self.folders.items() if ability in needed]
        return [*self.needs.get(ability, []), *folders]


def _ability_of(reason: str) -> str:
    """The lacking ability, from the texts of abilities.need() and pytest.importorskip()."""
    for ability in abilities.probes:
        if reason.startswith((f"needs {ability}: ", f"could not import '{ability}'")):
            return ability
    return ""


def _among(node: str, places: list[str]) -> bool:
    return any(fnmatchcase(node, place) for place in places)


def _torch_is_below(bound: str) -> bool:
    from importlib.metadata import version

    numbers = [[int(part) for part in text.split(".")[:2]] for text in (version("torch"), bound)]
    return numbers[0] < numbers[1]


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The text of a skip, or of a test that is expected to fail and does."""
    if (expected := getattr(report, "wasxfail", None)) is not None:
        return f"expected to fail: {expected}"
    text = report.longrepr
    return (text[2] if isinstance(text, tuple) else str(text)).removeprefix("Skipped: ")


class Skips:
    """The plugin of one run, or of one worker of it."""

    def __init__(self, config: pytest.Config, listed: Path, worker: dict[str, Any]) -> None:
        self.config = config
        self.list = listed
        self.permitted = Permitted.read(listed)
        self.skipped: dict[str, Counter[str]] = {}  # by reason and folder
        self.ran: Counter[str] = Counter()  # by folder
        abilities.take(*worker.get("abilities", ({}, {})))
        self.lacking = abilities.survey(filter(self._matters, abilities.probes))

    def _matters(self, ability: str) -> bool:
        """Whether a collected test may need the ability. A run of all tests probes every
        ability."""
        tests, asked = self.config.rootpath / "tests", self._asked()
        if any(path == tests or path in tests.parents for path in asked):
            return True
        folders = {
            tests / folder_of(place).split("/")[1] for place in self.permitted.places(ability)
        }
        return any(folder == path or folder in path.parents for folder in folders for path in asked)

    def _asked(self) -> list[Path]:
        here = self.config.invocation_params.dir
        return [(here / argument.split("::")[0]).resolve() for argument in self.config.args]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["abilities"] = (self.lacking, abilities.errors)

    def pytest_report_header(self) -> str:
        said = {name: "no" if why else "yes" for name, why in self.lacking.items()}
        said |= dict.fromkeys(abilities.errors, "error")
        names = sorted(said, key=str.lower)
        return "abilities: " + ", ".join(f"{name}: {said[name]}" for name in names)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for mark in item.iter_markers("needs"):
            for ability in mark.args:
                abilities.need(ability)

    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> pytest.Module | None:
        """Skips a module without importing it if the machine lacks the folder's abilities."""
        folder = folder_of(module_path.relative_to(self.config.rootpath).as_posix())
        for ability in self.permitted.folders.get(folder, []):
            if abilities.lacking(ability):
                absent: Absent = Absent.from_parent(parent, path=module_path)
                absent.ability = ability
                return absent
        return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        return self._judged((yield))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        return self._judged((yield))

    def _judged(self, report: Any) -> Any:
        if report.skipped:
            reason = reason_of(report)
            if objection := self.permitted.objection(report.nodeid, reason):
                report.outcome = "failed"
                report.longrepr = f"skipped, but {objection} in {self.list.name}: {reason}"
                vars(report).pop("wasxfail", None)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> Iterator[None]:
        ignored = yield
        asked = self.config.getoption("ignore") or self.config.getoption("ignore_glob")
        tests = self.config.rootpath / "tests"
        if (
            ignored
            and not asked
            and tests in collection_path.parents
            and _tests_below(collection_path)
        ):
            raise pytest.Collector.CollectError(
                f"{collection_path} has tests, and a conftest.py ignores them"
            )
        return ignored

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._count(report)
        elif report.when == "call" or report.failed:
            self.ran[folder_of(report.nodeid)] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._count(report)

    def _count(self, report: Any) -> None:
        by_folder = self.skipped.setdefault(reason_of(report), Counter())
        by_folder[folder_of(report.nodeid)] += 1

    def _silent_folders(self) -> list[str]:
        """Folders in which no test ran, although this run selected all their tests."""
        chosen = ("keyword", "markexpr", "ignore", "ignore_glob", "deselect", "lf", "collectonly")
        if any(self.config.getoption(option, None) for option in chosen):
            return []
        asked = self._asked()
        silent = []
        for folder in sorted(self.config.rootpath.glob("tests/*/")):
            name = f"tests/{folder.name}"
            needed = self.permitted.folders.get(name, [])
            inside = any(path == folder or path in folder.parents for path in asked)
            if inside and not self.ran[name] and not any(map(self.lacking.get, needed)):
                silent += [name] if _tests_below(folder) else []
        return silent

    def _faults(self) -> list[str]:
        silent = "nothing of {} ran, which this machine could run"
        return [*abilities.errors.values(), *map(silent.format, self._silent_folders())]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        if session.exitstatus == pytest.ExitCode.OK and self._faults():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("ran and skipped")
        write(f"ran {_listed(self.ran)}")
        for reason, folders in sorted(self.skipped.items()):
            write(f"skipped {_listed(folders)}: {reason}")
        for fault in self._faults():
            write(f"FAILED: {fault}", red=True)


class Absent(pytest.Module):
    ability: str

    def collect(self) -> list[pytest.Item]:
        abilities.need(self.ability)
        raise AssertionError(f"made for a machine that lacks {self.ability}")


def _listed(folders: Counter[str]) -> str:
    return f"{folders.total()} ({', '.join(f'{one} {folders[one]}' for one in sorted(folders))})"


def folder_of(node: str) -> str:
    return "/".join(node.split("::")[0].split("/")[:2])


def _tests_below(path: Path) -> bool:
    return path.match("test_*.py") or (path.is_dir() and any(path.rglob("test_*.py")))
