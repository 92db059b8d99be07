"""The jobs that are run in the virtual machine. Read by the test, which judges what came of them,
and in the guest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """Rank r is on host hosts[r]: a with rxe0, or b with rxe1 on the other end of the wire."""

    name: str
    hosts: str
    rounds: int = 1  # of all collectives
    netem: str = ""  # what either end of the wire does to what it sends
    elements: int = 0  # of one all_reduce whose bytes are counted

    def device(self, rank: int) -> str:
        return f"rxe{ord(self.hosts[rank]) - ord('a')}"


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("interleaved", "abab", elements=1 << 18),
        Scenario("block", "aabb", rounds=2, elements=1 << 18),
        Scenario("delay", "abab", netem="delay 5ms"),
        Scenario("loss", "aabb", rounds=2, netem="loss 1%", elements=1 << 18),
    )
}
