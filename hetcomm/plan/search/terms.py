"""The job that a search plans, and the times of layers on its pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hetcomm.plan.layout import LEVELS
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.network import Network
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.profile import Profile, Times
from hetcomm.plan.search.pools import Pool
from hetcomm.plan.search.shapes import Part

Value = TypeVar("Value")


@dataclass(frozen=True)
class Problem:
    """The job to plan. devices: the kind of each rank's device. scaled: whether tensor degrees
    without measurements count."""

    model: Model
    profile: Profile
    network: Network
    devices: Sequence[str]
    pools: Sequence[Pool]
    runtime: Runtime
    scaled: bool = False


class Terms:
    """Times and degrees of a problem, and what Probes found, computed once each."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._known: dict[tuple[object, ...], Any] = {}

    def once(self, key: tuple[object, ...], compute: Callable[[], Value]) -> Value:
        """The value of a key, computed at its first use."""
        if key not in self._known:
            self._known[key] = compute()
        value: Value = self._known[key]
        return value

    def degrees(self, kind: str) -> list[int]:
        """The measured tensor degrees of a kind of device."""
        rows = self.problem.profile.rows
        return self.once(
            ("degrees", kind), lambda: sorted({row.tensor for row in rows if row.device == kind})
        )

    def times(self, part: Part, samples: int, kind: str) -> Times:
        """Of a layer on a rank of a part, without recompute and what context ranks exchange."""
        problem = self.problem
        device = problem.pools[part.pool].kind

        def compute() -> Times:
            times = problem.profile.layer(problem.model, device, kind, samples, part.tensor)
            return times.scaled(1 / part.context, times.error)

        return self.once(("times", device, part.tensor, part.context, samples, kind), compute)

    def block_seconds(self, pool: int, tensor: int, context: int, samples: int) -> float | None:
        """Of a block forward and backward, without recompute; None for impossible degrees."""
        model, kind = self.problem.model, self.problem.pools[pool].kind
        measured = self.problem.scaled or tensor in self.degrees(kind)
        if model.groups % tensor or model.sequence % context or not measured:
            return None
        times = self.times(Part(pool, tensor, context, 1), samples, "block")
        return times.forward + times.backward

    def rank_seconds(self, part: Part, samples: int, kind: str) -> float:
        """Of a layer forward and backward, of one sample, on all ranks of a replica together."""
        times = self.times(part, samples, kind)
        return (times.forward + times.backward) * part.width / samples

    def memory(self, part: Part) -> float:
        """Bytes of a part's devices."""
        return self.problem.profile.devices[self.problem.pools[part.pool].kind].memory


def distinct_levels(problem: Problem) -> list[str]:
    """The levels that differ on this cluster, narrowest first. Equal ones have the later name, but
    each rank alone is "rank", which every runtime permits."""
    ranks = [rank for pool in problem.pools for host in pool.hosts for rank in host]
    found: dict[frozenset[frozenset[int]], str] = {}
    for level in LEVELS:
        parts: dict[object, set[int]] = {}
        for rank in ranks:
            parts.setdefault(problem.network.domain(rank, level), set()).add(rank)
        key = frozenset(map(frozenset, parts.values()))
        if found.get(key) != "rank":
            found[key] = level
    return [found[parts] for parts in sorted(found, key=len, reverse=True)]
