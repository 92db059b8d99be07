"""The results in bench/results, for pictures and pages."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hetcomm import _core
from studies.model import Outcome, Verdict

FOLDER = Path(__file__).resolve().parents[1] / "results"


class ResultError(Exception):
    """A faulty stored result, with the remedy."""


@dataclass
class Result:
    """One measurement of a study. `facts` is its origin, see provenance.py, with its "seconds"."""

    study: str
    command: str
    facts: dict[str, Any]
    failures: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    bars: dict[str, float] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def stamp(self) -> str:
        """The name of this result in its picture."""
        return f"{self.study} {self.facts['time']} {self.facts['commit']}"

    @property
    def quick(self) -> bool:
        """A try with few calls, as `--quick` makes."""
        return "--quick" in self.command.split()

    def of(self, *kinds: str, where: str | None = None) -> list[Verdict]:
        """Measured verdicts of these kinds, on this layout."""
        return [
            each
            for each in self.verdicts
            if each.kind in kinds and where in (None, each.where) and not math.isnan(each.ratio)
        ]

    def write(self, folder: Path) -> None:
        """Writes one line for each verdict and job, which keeps diffs short."""
        content = {
            "study": self.study,
            "command": self.command,
            **self.facts,
            "failures": self.failures,
            "verdicts": [_plain(asdict(each)) for each in self.verdicts],
            "bars": _plain(self.bars),
            "jobs": [_plain(asdict(each)) for each in self.outcomes],
        }
        lines = [f"{json.dumps(key)}: {_nested(value)}" for key, value in content.items()]
        (folder / f"{self.study}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


Results = Mapping[str, Result]  # by study


def load(name: str, folder: Path = FOLDER) -> Result:
    """Raises ResultError for a missing result, or one without its origin."""
    file = folder / f"{name}.json"
    try:
        facts = json.loads(file.read_text())
        lists = {key: facts.pop(key) for key in ("failures", "verdicts", "bars", "jobs")}
        study, command = facts.pop("study"), facts.pop("command")
        verdicts = [Verdict(**_with_nan(each)) for each in lists["verdicts"]]
        outcomes = [Outcome(**each) for each in lists["jobs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultError(
            f"expected a result in {file.name}, got {type(error).__name__}: {error}; measure it: "
            f"python bench/study.py {name}"
        ) from None
    missing = [key for key in ("commit", "time", "machine") if key not in facts]
    if missing:
        raise ResultError(f"{file.name} lacks {', '.join(missing)}; measure it again: {command}")
    return Result(study, command, facts, lists["failures"], verdicts, lists["bars"], outcomes)


def in_words(where: str) -> str:
    """ "2+2 ranks over 1 Gbit/s, block" of "2+2 over 1gbit, block"."""
    where = re.sub(r"(?<=bit)([/+])(?=\d)", lambda found: {"/": ", ", "+": " + "}[found[1]], where)
    where = re.sub(r"(\d)([gm])bit", lambda found: f"{found[1]} {found[2].upper()}bit/s", where)
    where = where.replace("over unlimited", "over an unshaped link")
    return where.replace(" over ", " ranks over ")


def collective_of(what: str) -> str:
    return what.partition(" ")[0]


def time_text(seconds: float) -> str:
    return _core.format_seconds(seconds)


def ratio_text(ratio: float) -> str:
    """With significant digits only: 1.004, 1.25, 12.5, 126."""
    return f"{ratio:.{digits_of(ratio)}f}"


def digits_of(ratio: float) -> int:
    """Digits behind the point."""
    if ratio >= 10:
        return 0 if ratio >= 100 else 1
    return 3 if 0.9 < ratio < 1.1 else 2


def _with_nan(line: dict[str, Any]) -> dict[str, Any]:
    numbers = {each.name for each in fields(Verdict) if each.type == "float"}
    return {k: math.nan if v is None and k in numbers else v for k, v in line.items()}


def _nested(value: object) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n " + ",\n ".join(json.dumps(each) for each in value) + "\n]"


def _plain(value: object) -> Any:
    """For JSON: None for NaN, and significant digits only."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
