"""What was measured, as the text that csrc/plan/profile.h reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hetcomm import _core

HEADING = "hetcomm profile 1"
Size = tuple[int, int, int]  # members, ranks of the host, its processors
Points = dict[int, list[float]]  # bytes -> seconds of each who measured it


@dataclass
class Measured:
    """Filled alike on all ranks. islands, messages: seconds by what they are of and by bytes."""

    topology: _core.Topology
    islands: dict[Size, dict[str, Points]] = field(default_factory=dict)
    messages: dict[str, Points] = field(default_factory=dict)
    bandwidths: dict[int, float] = field(default_factory=dict)  # by host
    memory_bandwidth: float = 0.0
    step: float = 0.0

    def memory(self, bandwidths: Sequence[float], steps: Sequence[float]) -> None:
        """Of each rank: bytes per second while all are at it, and seconds of a step."""
        hosts = [self._host(self.topology.host_of(rank)) for rank in range(len(bandwidths))]
        shares = [host.ranks / min(host.ranks, host.cores) for host in hosts]
        self.memory_bandwidth = min(map(float.__mul__, bandwidths, shares))
        self.step = min(steps)

    def collective(self, name: str, found: Sequence[Sequence[float] | None]) -> None:
        """found: of each rank (bytes, seconds), None where there is no island."""
        for island in self.topology.islands:
            of_island = found[island[0]]
            if of_island is None:
                continue
            host = self._host(self.topology.host_of(island[0]))
            size = (len(island), host.ranks, host.cores)
            points = self.islands.setdefault(size, {}).setdefault(name, {})
            points.setdefault(int(of_island[0]), []).append(of_island[1])

    def link(
        self,
        pair: tuple[int, int],
        senders: int,
        messages: Sequence[Sequence[float]],
        bulk: Sequence[float],
    ) -> None:
        """Of two hosts with so many senders each, all at once: (bytes, seconds) of small messages
        and of one that fills the link. A host is as fast as with the fastest that it met."""
        bandwidth = senders * bulk[0] / bulk[1]
        for host in pair:
            self.bandwidths[host] = max(self.bandwidths.get(host, 0.0), bandwidth)
        first, second = (self.topology.hosts[host][0] for host in pair)
        fabric = self.topology.fabric_between(first, second).name
        points = self.messages.setdefault(fabric, {})
        for size, seconds in messages:
            waited = (senders - 1) * size / bandwidth  # for the others' turns at the NIC
            points.setdefault(int(size), []).append(max(seconds - waited, 0.0))

    def text(self) -> str:
        """The profile. Raises InvalidArgumentError where it says too little to be one."""
        lines = [HEADING]
        for index in range(len(self.topology.hosts)):
            host = self._host(index)
            lines.append(
                f"host name={host.name} ranks={host.ranks} cores={host.cores} nics={host.nics} "
                f"bandwidth={round(self.bandwidths.get(index, 0))}"
            )
        for (members, ranks, cores), curves in sorted(self.islands.items()):
            lines.append(f"island members={members} ranks={ranks} cores={cores}")
            lines += [f"{name} {_curve(points)}" for name, points in curves.items()]
        lines += [f"message {fabric} {_curve(each)}" for fabric, each in self.messages.items()]
        lines.append(
            f"memory bandwidth={round(self.memory_bandwidth)} step={round(self.step * 1e9)}"
        )
        return str(_core.Profile("\n".join(lines), "measured"))

    def _host(self, index: int) -> _core.Profile.Host:
        return _core.profile_host(self.topology, index)


def _curve(points: Points) -> str:
    """BYTES=NANOSECONDS, of times that do not fall: what was shorter at more bytes was a chance."""
    words, least = [], 0
    for size, seconds in sorted(points.items()):
        least = max(least, round(sum(seconds) / len(seconds) * 1e9))
        words.append(f"{size}={least}")
    return " ".join(words)
