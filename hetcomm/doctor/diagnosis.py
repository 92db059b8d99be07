"""All checks, in the order of the page."""

from __future__ import annotations

from hetcomm.doctor import clock, limits, nics, reach, settings, versions
from hetcomm.doctor.cluster import JobFacts
from hetcomm.doctor.finding import Finding, Severity, merged

CHECKS = (versions, nics, reach, clock, limits, settings)


def diagnose(cluster: JobFacts) -> list[Finding]:
    """The findings of all checks, worst first."""
    found = _missing(cluster) + _without_facts(cluster)
    for check in CHECKS:
        found += check.check(cluster)
    return sorted(merged(found), key=lambda each: each.severity)


def _missing(cluster: JobFacts) -> list[Finding]:
    if not cluster.missing:
        return []
    return [
        Finding(
            Severity.error,
            "ranks",
            (),
            tuple(cluster.missing),
            f"no facts came within {cluster.seconds:.0f} s",
            f"all {cluster.size} ranks",
            "see the output of these ranks; check that they start, and reach MASTER_ADDR and "
            "MASTER_PORT",
        )
    ]


def _without_facts(cluster: JobFacts) -> list[Finding]:
    return [
        Finding(Severity.note, name, (), (member.rank,), f"could not be checked: {why}")
        for member in cluster.members
        for name, why in member.failed.items()
    ]
