"""The jobs that run in the virtual machine. The test, which judges the results, and the guest read
them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

DEVICES = 4


@dataclass(frozen=True)
class Scenario:
    """Rank r is on host hosts[r].

    Host a has rxe0, and b has rxe1 on the other end of the wire. c has rxe2, and d has rxe3 on a
    wire of their own. No RDMA reaches the first wire from the second. A job with both wires also
    has Ethernet, en0 to en3.
    """

    name: str
    hosts: str
    vendors: str = ""  # by rank: n and a are the emulated vendors; the default is the CPU for all
    rounds: int = 1  # repetitions of all collectives
    netem: str = ""  # netem settings of both ends of the first wire
    elements: int = 0  # of each counted message or all_reduce

    def number(self, rank: int) -> int:
        return ord(self.hosts[rank]) - ord("a")

    def device(self, rank: int) -> str:
        return f"rxe{self.number(rank)}"

    @property
    def two_networks(self) -> bool:
        return bool({"a", "b"} & set(self.hosts)) and bool({"c", "d"} & set(self.hosts))

    def interfaces(self, rank: int) -> str:
        ethernet = f",en{self.number(rank)}" if self.two_networks else ""
        return self.device(rank) + ethernet

    def over_rdma(self, rank: int, peer: int) -> bool:
        return self.number(rank) // 2 == self.number(peer) // 2

    @property
    def pairs_apart(self) -> int:
        """Ordered pairs of ranks that no RDMA network joins."""
        pairs = permutations(range(len(self.hosts)), 2)
        return sum(not self.over_rdma(rank, peer) for rank, peer in pairs)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("interleaved", "abab", elements=1 << 18),
        Scenario("block", "aabb", rounds=2, elements=1 << 18),
        Scenario("delay", "abab", netem="delay 5ms"),
        Scenario("loss", "aabb", rounds=2, netem="loss 1%", elements=1 << 18),
        Scenario("networks-block", "abcd", elements=1 << 18),
        Scenario("networks-interleaved", "acbd", elements=1 << 18),
        Scenario("vendors-block", "abcd", "nnaa", elements=1 << 18),
        Scenario("vendors-interleaved", "acbd", "nana", elements=1 << 18),
    )
}
