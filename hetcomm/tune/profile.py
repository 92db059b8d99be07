"""The measurements, as the text that csrc/plan/profile.h reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hetcomm import _core

HEADING = "hetcomm profile 1"
Size = tuple[int, int, int]  # members, ranks of the host, its processors
Points = dict[int, list[float]]  # bytes -> seconds, of each measuring rank or pair


@dataclass
class Measured:
    """Equal on all ranks. islands: seconds by island size, collective and bytes. all_reduces:
    (ranks of two hosts, bytes, seconds)."""

    topology: _core.Topology
    islands: dict[Size, dict[str, Points]] = field(default_factory=dict)
    all_reduces: list[tuple[tuple[int, ...], int, float]] = field(default_factory=list)
    bandwidths: dict[int, float] = field(default_factory=dict)  # by host
    memory_bandwidth: float = 0.0
    step: float = 0.0

    def memory(self, bandwidths: Sequence[float], steps: Sequence[float]) -> None:
        """Takes by rank bytes per second while all ranks copy, and seconds of a step."""
        hosts = [self._host(self.topology.host_of(rank)) for rank in range(len(bandwidths))]
        shares = [host.ranks / min(host.ranks, host.cores) for host in hosts]
        self.memory_bandwidth = min(map(float.__mul__, bandwidths, shares))
        self.step = min(steps)

    def collective(self, name: str, found: Sequence[Sequence[float] | None]) -> None:
        """found: by rank (bytes, seconds), None for a rank without island."""
        for island in self.topology.islands:
            of_island = found[island[0]]
            if of_island is None:
                continue
            host = self._host(self.topology.host_of(island[0]))
            size = (len(island), host.ranks, host.cores)
            points = self.islands.setdefault(size, {}).setdefault(name, {})
            points.setdefault(int(of_island[0]), []).append(of_island[1])

    def link(
        self, ranks: Sequence[int], bandwidth: float, found: Sequence[Sequence[float]]
    ) -> None:
        """ranks: all of two hosts. found: (bytes, seconds) of their all_reduces. The fastest pair
        of a host gives its bandwidth."""
        for host in {self.topology.host_of(rank) for rank in ranks}:
            self.bandwidths[host] = max(self.bandwidths.get(host, 0.0), bandwidth)
        self.all_reduces += [(tuple(ranks), int(size), seconds) for size, seconds in found]

    def sent(self, ranks: Sequence[int], size: int) -> int:
        """Bytes of the largest message of an all_reduce of these ranks."""
        return _largest_message(self._plans(ranks, size)[1])

    def text(self) -> str:
        """The profile. Raises InvalidArgumentError if measurements are missing."""
        fabrics = {self._fabric(ranks): "1=0 2=0" for ranks, _, _ in self.all_reduces}
        without = _core.Profile(self._text(fabrics), "measured")
        messages = {fabric: _curve(each) for fabric, each in self._messages(without).items()}
        return str(_core.Profile(self._text(messages), "measured"))

    def _messages(self, without: _core.Profile) -> dict[str, Points]:
        """The time of a message, by fabric and bytes: that of an all_reduce less the part of the
        islands. A profile whose messages cost only their time at the NICs predicts that part."""
        parameters = _core.CostParameters(without)
        messages: dict[str, Points] = {}
        for ranks, size, seconds in self.all_reduces:
            topology, plans = self._plans(ranks, size)
            rest = seconds - _core.predict(topology, plans, parameters).total * 1e-9
            sent = _largest_message(plans)
            bandwidth = min(self.bandwidths[self.topology.host_of(rank)] for rank in ranks)
            took = max(rest, 0.0) + sent / bandwidth + self.step
            messages.setdefault(self._fabric(ranks), {}).setdefault(sent, []).append(took)
        return messages

    def _plans(self, ranks: Sequence[int], size: int) -> tuple[_core.Topology, list[_core.Plan]]:
        infos = [self.topology.rank(rank) for rank in ranks]
        topology = _core.Topology(infos, self.topology.unreachable)
        spec = _core.Spec(_core.Collective.all_reduce, count=size // 4, in_place=True)
        return topology, _core.Planner(topology).plan_all(spec)

    def _fabric(self, ranks: Sequence[int]) -> str:
        other = next(r for r in ranks if not self.topology.same_host(r, ranks[0]))
        name: str = self.topology.fabric_between(ranks[0], other).name
        return name

    def _text(self, messages: dict[str, str]) -> str:
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
        lines += [f"message {fabric} {curve}" for fabric, curve in messages.items()]
        lines.append(
            f"memory bandwidth={round(self.memory_bandwidth)} step={round(self.step * 1e9)}"
        )
        return "\n".join(lines)

    def _host(self, index: int) -> _core.Profile.Host:
        return _core.profile_host(self.topology, index)


def _largest_message(plans: Sequence[_core.Plan]) -> int:
    return 4 * max(
        step.sources[0].count
        for plan in plans
        for step in plan.steps
        if step.kind == _core.StepKind.send
    )


def _curve(points: Points) -> str:
    """BYTES=NANOSECONDS pairs with rising times. A size slower than a larger one was disturbed, and
    gets the larger one's time."""
    words: list[str] = []
    most = math.inf
    for size, seconds in sorted(points.items(), reverse=True):
        most = min(most, sum(seconds) / len(seconds) * 1e9)
        words.insert(0, f"{size}={round(most)}")
    return " ".join(words)
