"""A finding: what was found, what was expected, and the exact fix."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import Any, TypeVar

from hetcomm.topo_page import format_ranks

Value = TypeVar("Value", bound=Hashable)


class Severity(IntEnum):
    """Worst first. error: the job fails. warning: the job may fail or be slow. note: good to know,
    such as a check that could not be made."""

    error = 0
    warning = 1
    note = 2


@dataclass(frozen=True)
class Finding:
    """One thing that a check found, with what was expected and its remedy.

    hosts: names; if empty, `ranks` says where. fix: a command or setting, "" for none.
    """

    severity: Severity
    check: str
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    found: str
    expected: str = ""
    fix: str = ""

    def where(self) -> str:
        if self.hosts:
            return ", ".join(self.hosts)
        return format_ranks(list(self.ranks)) if self.ranks else "job"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"severity": self.severity.name}


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that differ in their ranks alone become one."""
    ranks: dict[Finding, list[int]] = {}
    for each in findings:
        ranks.setdefault(replace(each, ranks=()), []).extend(each.ranks)
    return [replace(each, ranks=tuple(of_each)) for each, of_each in ranks.items()]


def group(values: Iterable[tuple[int, Value]]) -> dict[Value, list[int]]:
    """[value] -> its ranks, the most common value first, of equals that of the lowest rank."""
    ranks: dict[Value, list[int]] = {}
    for rank, value in values:
        ranks.setdefault(value, []).append(rank)
    return dict(sorted(ranks.items(), key=lambda each: (-len(each[1]), each[1][0])))


def listed(groups: dict[Value, list[int]]) -> str:
    """{"1.2": [0, 1], "1.3": [2]} -> "1.2 on ranks 0-1; 1.3 on rank 2"."""
    return "; ".join(f"{value} on {format_ranks(ranks)}" for value, ranks in groups.items())


def outsiders(groups: dict[Value, list[int]]) -> tuple[int, ...]:
    """The ranks without the most common value; all ranks if no value is the most common."""
    sizes = [len(ranks) for ranks in groups.values()]
    skipped = 0 if sizes.count(sizes[0]) > 1 else 1
    return tuple(sorted(rank for ranks in list(groups.values())[skipped:] for rank in ranks))
