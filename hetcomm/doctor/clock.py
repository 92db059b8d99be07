"""Differences between the clocks of hosts."""

from __future__ import annotations

from hetcomm.doctor.cluster import JobFacts
from hetcomm.doctor.finding import Finding, Severity

NAME = "clock"
CHECKED = "the clocks of all hosts against that of the first"
SKEW = 1.0  # seconds


def skews(cluster: JobFacts) -> dict[int, tuple[float, float]]:
    """[host] -> seconds that its clock is ahead of the first host's, and the bound of the error."""
    found: dict[int, tuple[float, float]] = {}
    for link in cluster.links:
        if link.offset is None or link.error is None or 0 not in (link.source, link.target):
            continue
        host, sign = (link.target, 1) if link.source == 0 else (link.source, -1)
        if host not in found or link.error < found[host][1]:
            found[host] = (sign * link.offset, link.error)
    return found


def check(cluster: JobFacts) -> list[Finding]:
    if cluster.alone:
        return []
    known, found = skews(cluster), []
    for host in range(1, len(cluster.hosts)):
        names, ranks = (cluster.host_name(host),), cluster.ranks_of(host)
        first = cluster.host_name(0)
        if host not in known:
            text = f"the clock was not compared: no connection with {first}"
            found.append(Finding(Severity.note, NAME, names, ranks, text))
            continue
        offset, error = known[host]
        if abs(offset) - error > SKEW:
            side = "ahead of" if offset > 0 else "behind"
            found.append(
                Finding(
                    Severity.warning,
                    NAME,
                    names,
                    ranks,
                    f"the clock is {abs(offset):.3f} s {side} {first}, within {error * 1e3:.2g} ms",
                    f"at most {SKEW:g} s, for logs, certificates and files to agree",
                    "timedatectl set-ntp true, or chronyc makestep",
                )
            )
    return found
