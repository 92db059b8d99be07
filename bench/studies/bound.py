"""The shortest time in which links can carry an all_reduce, whatever the algorithm."""

from __future__ import annotations

from typing import Any

from studies.model import Layout


def capacities(layout: Layout, link: dict[str, Any]) -> list[float]:
    """Bytes per second of each host and direction: what plain TCP reached on the first host's NICs,
    and in proportion to their nominal rates on those of the others."""
    rates = layout.rates_by_host
    reached = [
        measured / nominal
        for measured, nominal in zip(link["bytes_per_second"], rates[0], strict=True)
        if nominal is not None
    ]
    if not reached:
        return [sum(link["bytes_per_second"])] * len(rates)
    share = sum(reached) / len(reached)
    return [sum(rate * share for rate in of_host if rate) for of_host in rates]


def all_reduce_seconds(size: int, capacities: list[float]) -> float:
    """The optimum of this linear program: every host sends what its ranks contribute at least once,
    so at least `size`, as does every result reach it; and in all, 2 (k-1) times `size` is sent,
    which hosts share as they like beyond that. It has this closed form."""
    hosts = len(capacities)
    slowest = size / min(capacities)
    return max(slowest, 2 * (hosts - 1) * size / sum(capacities))
