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
# The search dives after so many nodes, and opens so many at most.
INTERVAL, DEPTH = 96, 48


class Node(Protocol[Leaf]):
    """A set of leaves.

    bound: no leaf of the set costs less. leaf: the only leaf of the set, or None for a set that
    open() divides.
    """

    @property
    def bound(self) -> float: ...

    @property
    def leaf(self) -> Leaf | None: ...

    def open(self, below: float) -> Iterable[Node[Leaf]]:
        """Nodes that together hold all leaves of the set that cost less than `below`, the most
        promising first."""
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
    key: Callable[[Leaf], Hashable],
    *,
    top: int = 1,
    tolerance: float = 0.0,
    seconds: float = float("inf"),
) -> Found[Solution]:
    """The solution of least cost, and the runners-up among the priced leaves.

    price: the cost of a leaf and its solution; None for a leaf without one. The search ends when no
    other leaf can cost less than (1 - tolerance) times the best one, or after `seconds`. Of nodes
    with equal bounds the latest comes first. Now and then the search dives: it opens nodes
    depth-first until it priced a leaf. So good leaves are known early.
    """
    end = time.monotonic() + seconds
    order = count(0, -1)
    heap: list[tuple[float, int, Node[Leaf]]] = []
    best: dict[Hashable, tuple[float, Solution]] = {}
    least = below = float("inf")
    priced = opened = 0
    due = 0
    cut = False

    def push(nodes: Iterable[Node[Leaf]]) -> None:
        for node in nodes:
            if node.bound < below:
                heapq.heappush(heap, (node.bound, next(order), node))

    def look(node: Node[Leaf]) -> list[Node[Leaf]]:
        """Opens or prices a node."""
        nonlocal priced, opened, least, below
        opened += 1
        leaf = node.leaf
        if leaf is None:
            return list(node.open(below))
        found = price(leaf)
        if found is not None:
            priced += 1
            name, cost = key(leaf), found[0]
            if name not in best or cost < best[name][0]:
                best[name] = found
            if cost < least:
                least, below = cost, cost * (1 - tolerance)
        return []

    push(roots)
    while heap and heap[0][0] < below:
        if time.monotonic() > end:
            cut = True
            break
        node = heapq.heappop(heap)[2]
        if opened < due:
            push(look(node))
            continue
        before, stack = priced, [node]
        for _ in range(DEPTH):
            if stack and priced == before:
                stack += reversed(look(stack.pop()))
        push(stack)
        due = opened + INTERVAL
    first = sorted(best.values(), key=lambda each: each[0])[:top]
    return Found(first, min(below, heap[0][0]) if cut else below, priced, opened, cut)
