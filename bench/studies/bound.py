"""The least time of a collective on its links, for any algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studies.model import Layout


def capacities(layout: Layout, link: dict[str, Any]) -> list[float]:
    """Bytes per second of each host and direction. Plain TCP gives the rate of the first host's
    NICs; the rates of other hosts are in proportion to the nominal ones."""
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


def least_bytes(
    collective: str, size: int, hosts: Sequence[int]
) -> tuple[list[float], list[float], float]:
    """The least bytes that each host sends, that each host receives, and the total.

    `size` is that of the largest buffer. `hosts` has the ranks of each of two hosts or more. The
    root is on the first host. A byte or sum that other hosts need leaves its host once, and comes
    to each of these hosts once.
    """
    ranks, others = sum(hosts), len(hosts) - 1
    block = size / ranks
    if collective == "all_to_all":
        exchanged = [own * (ranks - own) * block for own in hosts]
        return exchanged, exchanged, sum(exchanged)
    if collective == "all_reduce":
        whole = [float(size)] * len(hosts)
        return whole, whole, 2.0 * others * size
    if collective in ("broadcast", "reduce"):
        many, one = [0.0, *[float(size)] * others], [float(size), *[0.0] * others]
    else:  # all_gather, and reduce_scatter, which is its reverse
        many, one = [(ranks - own) * block for own in hosts], [own * block for own in hosts]
    if collective in ("reduce", "reduce_scatter"):
        return many, one, sum(many)
    return one, many, sum(many)


def least_seconds(
    collective: str, size: int, hosts: Sequence[int], capacities: Sequence[float]
) -> float:
    """The optimum of the linear program with these constraints. Hosts may relay: they share the
    total beyond each host's own minimum."""
    sent, received, total = least_bytes(collective, size, hosts)
    busiest = map(max, sent, received)
    alone = [bytes / capacity for bytes, capacity in zip(busiest, capacities, strict=True)]
    return max(*alone, total / sum(capacities))
