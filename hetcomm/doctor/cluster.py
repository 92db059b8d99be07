"""What all ranks have found, as the checks read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hetcomm import _core


@dataclass(frozen=True)
class Member:
    """The facts of one rank.

    info: None if the rank cannot probe its machine, or has another hetcomm; `error` says why.
    facts: [check] -> the facts for this check, as JSON. failed: [check] -> why there are none.
    """

    rank: int
    host: str
    host_name: str
    info: _core.RankInfo | None
    error: str
    facts: dict[str, Any]
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_report(cls, rank: int, report: dict[str, Any]) -> Member:
        """Reads what gather.report() has published. error says why the facts of another hetcomm
        cannot be read."""
        info, error = None, report["error"]
        try:
            info = _core.parse_rank_info(report["facts"]) if report["facts"] else None
        except _core.Error as raised:
            error = str(raised)
        return cls(
            rank,
            report["host"],
            report["host_name"],
            info,
            error,
            report["checks"],
            report["failed"],
        )


@dataclass(frozen=True)
class Link:
    """A path from a NIC of one host to a NIC of another. Hosts are indices into JobFacts.hosts.

    planned: whether a round of pairs measures the rate; large jobs leave rounds out. why: the
    reason of a failure, "" for none. rate: bytes per second from `source` to `target`, None if not
    measured. reference: the rate of the slower host's loopback, an upper bound for what its
    processors carry. offset, error: seconds that the clock of the target is ahead, and a bound on
    the error; None without an exchange.
    """

    source: int
    target: int
    own: str
    other: str
    from_address: str
    to_address: str
    port: int
    planned: bool = True
    why: str = ""
    rate: float | None = None
    reference: float | None = None
    offset: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class JobFacts:
    """The facts of all ranks of a job, as checks get them.

    size: ranks of the job. members: those that came, in order.
    """

    size: int
    members: list[Member]
    missing: list[int] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    unmeasured: str = ""  # why links or rates of some pairs are not known
    alone: bool = False  # without a launcher
    seconds: float = 0.0  # that rank 0 waited for ranks

    @cached_property
    def hosts(self) -> list[list[Member]]:
        """Members by host, in the order of their lowest ranks."""
        return hosts_of(self.members)

    @cached_property
    def islands(self) -> list[list[Member]]:
        """Members by island, of those that know their own facts."""
        known = [(each, each.info) for each in self.members if each.info is not None]
        if not known:
            return []
        topology = _core.Topology([info for _, info in known])
        return [[known[place][0] for place in island] for island in topology.islands]

    def host_name(self, host: int) -> str:
        """The name of a host; with the lowest rank, if several hosts have this name."""
        name = self.hosts[host][0].host_name
        if sum(members[0].host_name == name for members in self.hosts) == 1:
            return name
        return f"{name} (rank {self.hosts[host][0].rank})"

    def values(self, check: str, key: str) -> list[tuple[int, Any]]:
        """(rank, fact) of all members with this fact."""
        found = ((each.rank, each.facts.get(check, {}).get(key)) for each in self.members)
        return [(rank, value) for rank, value in found if value is not None]

    def per_host(self, check: str, key: str) -> list[tuple[int, Any]]:
        """(host, fact of its first member with this fact)."""
        found = []
        for index, members in enumerate(self.hosts):
            values = (each.facts.get(check, {}).get(key) for each in members)
            value = next((value for value in values if value is not None), None)
            if value is not None:
                found.append((index, value))
        return found

    def ranks_of(self, host: int) -> tuple[int, ...]:
        return tuple(each.rank for each in self.hosts[host])


def hosts_of(members: list[Member]) -> list[list[Member]]:
    """Members by identity of their host, in the order of their lowest ranks."""
    found: dict[str, list[Member]] = {}
    for member in members:
        found.setdefault(member.host, []).append(member)
    return list(found.values())
