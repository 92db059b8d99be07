"""The page of `hetcomm doctor` for people, and the same findings for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from hetcomm.doctor.cluster import JobFacts
from hetcomm.doctor.diagnosis import CHECKS
from hetcomm.doctor.finding import Finding, Severity
from hetcomm.topo_page import count

_STYLES = {Severity.error: "bold red", Severity.warning: "yellow", Severity.note: "dim"}


def render(cluster: JobFacts, findings: list[Finding]) -> RenderableType:
    """One line a finding, worst first, each with its fix; then what was checked."""
    parts: list[RenderableType] = [Text.from_markup(f"[bold]{summary(cluster, findings)}[/]")]
    for each in findings:
        style = _STYLES[each.severity]
        expected = f"; expected {escape(each.expected)}" if each.expected else ""
        parts.append(
            Text.from_markup(
                f"[{style}]{each.severity.name}[/] {each.check}, [bold]{escape(each.where())}[/]: "
                f"{escape(each.found)}{expected}"
            )
        )
        if each.fix:
            parts.append(
                Padding(Text.from_markup(f"[green]fix:[/] {escape(each.fix)}"), (0, 0, 0, 4))
            )
    parts.append(Text.from_markup("[bold]Checked[/]"))
    for check in CHECKS:
        own = [each for each in findings if each.check == check.NAME]
        worst = min((each.severity for each in own), default=None)
        result = "well" if worst is None else f"{worst.name}s" if len(own) > 1 else worst.name
        parts.append(Padding(Text(f"{check.NAME} ({result}): {check.CHECKED}"), (0, 0, 0, 4)))
    return Group(*parts)


def summary(cluster: JobFacts, findings: list[Finding]) -> str:
    """4 ranks, 2 hosts: 1 error, 0 warnings, 2 notes."""
    counts = [sum(each.severity == one for each in findings) for one in Severity]
    found = ", ".join(count(number, one.name) for number, one in zip(counts, Severity, strict=True))
    healthy = "healthy, " if counts[:2] == [0, 0] else ""
    return f"{count(cluster.size, 'rank')}, {count(len(cluster.hosts), 'host')}: {healthy}{found}"


def describe(cluster: JobFacts, findings: list[Finding]) -> dict[str, Any]:
    """For programs. Rates in bytes per second, times in seconds."""
    return {
        "ranks": cluster.size,
        "missing": cluster.missing,
        "hosts": [
            {"name": cluster.host_name(i), "ranks": list(cluster.ranks_of(i))}
            for i in range(len(cluster.hosts))
        ],
        "findings": [each.as_json() for each in findings],
        "checked": {check.NAME: check.CHECKED for check in CHECKS},
        "links": [
            {
                "hosts": [cluster.host_name(link.source), cluster.host_name(link.target)],
                "nics": [link.own, link.other],
                "addresses": [link.from_address, link.to_address],
                "failure": link.why,
                "rate": link.rate,
                "loopback": link.reference,
                "clock_ahead": link.offset,
                "clock_error": link.error,
            }
            for link in cluster.links
        ],
    }
