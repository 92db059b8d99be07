"""Best-first search by lower bounds: the next node is always the one with the least bound."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

Leaf = TypeVar("Leaf")
Solution = TypeVar("Solution")


# One of so many nodes has a close bound, if there is one.
TURNS = 4
# Nodes that a search for runners-up opens at most, once the best solution is known.
MORE = 100


class Node(Protocol[Leaf]):
    """A set of leaves.

    bound: no leaf of the set costs less. close: whether the cheapest leaf costs hardly more. leaf:
    a leaf of the set to price, if it is known.
    """

    @property
    def bound(self) -> float: ...

    @property
    def close(self) -> bool: ...

    @property
    def leaf(self) -> Leaf | None: ...

    def open(self, below: float) -> Iterable[Node[Leaf]]:
        """Nodes that together hold all other leaves of the set that cost less than `below`, the
        most promising first."""
        ...


@dataclass(frozen=True)
class Found(Generic[Solution]):
    """The result of a search.

    best: (cost, solution), least cost first, at most one for each key. bound: no leaf costs less.
    priced: leaves of known cost. opened: nodes. cut: the time limit ended the search.
    """

    best: list[tuple[float, Solution]]
    bound: float
    priced: int
    opened: int
    cut: bool

    @property
    def gap(self) -> float:
        """The share by which another leaf may cost less than the best one, at most."""
        return max(0.0, 1.0 - self.bound / self.best[0][0]) if self.best else 0.0


def best_first(
    roots: Iterable[Node[Leaf]],
    price: Callable[[Leaf], tuple[float, Solution] | None],
    key: Callable[[Solution], Hashable],
    *,
    known: Iterable[tuple[float, Solution]] = (),
    top: int = 1,
    tolerance: float = 0.0,
    seconds: float = float("inf"),
) -> Found[Solution]:
    """The solution of least cost, and runners-up: good solutions, but not always the next best.

    price: the cost of a leaf and its solution; None for a leaf without one. known: solutions from
    elsewhere. The search ends when no other leaf can cost less than (1 - tolerance) times the best
    one, or after `seconds`. Nodes with close bounds and others take turns, so that good leaves are
    known early. Of nodes with equal bounds the latest comes first.
    """
    end = time.monotonic() + seconds
    order = count(0, -1)
    heaps: dict[bool, list[tuple[float, int, Node[Leaf]]]] = {False: [], True: []}
    best: dict[Hashable, tuple[float, Solution]] = {}
    least = below = float("inf")

    def take(found: tuple[float, Solution]) -> None:
        nonlocal least, below
        name, cost = key(found[1]), found[0]
        if name not in best or cost < best[name][0]:
            best[name] = found
        if cost < least:
            least, below = cost, cost * (1 - tolerance)

    for each in known:
        take(each)
    priced = opened = 0
    cut = False

    def push(nodes: Iterable[Node[Leaf]]) -> None:
        for node in nodes:
            if node.bound < below:
                heapq.heappush(heaps[node.close], (node.bound, next(order), node))

    def look(node: Node[Leaf]) -> Iterable[Node[Leaf]]:
        """Opens or prices a node."""
        nonlocal priced, opened
        opened += 1
        leaf = node.leaf
        if leaf is None:
            return node.open(below)
        found = price(leaf)
        if found is not None:
            priced += 1
            take(found)
        return node.open(below)

    push(roots)
    while live := [close for close, heap in heaps.items() if heap and heap[0][0] < below]:
        if time.monotonic() > end:
            cut = True
            break
        turn = live[-1 if opened % TURNS == TURNS - 1 else 0]
        push(look(heapq.heappop(heaps[turn])[2]))
    bound = min([below, *(heaps[close][0][0] for close in live if cut)])
    below = float("inf")  # only runners-up come from here on, so no leaf is too slow
    for _ in range(0 if cut else MORE):
        left = heaps[True] or heaps[False]
        if len(best) >= top or not left or time.monotonic() > end:
            break
        push(look(heapq.heappop(left)[2]))
    first = sorted(best.values(), key=lambda each: each[0])[:top]
    return Found(first, bound, priced, opened, cut)
