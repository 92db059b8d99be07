"""The search itself, on random trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from hetcomm.plan.search.best_first import best_first


@dataclass
class Tree:
    """A node whose bound is loose by `slack`. A leaf costs `cost`; None: it is no solution."""

    slack: float
    cost: float | None = None
    children: list[Tree] = field(default_factory=list)

    @property
    def close(self) -> bool:
        return self.slack > 0.5

    @property
    def leaves(self) -> Iterator[Tree]:
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves

    @property
    def costs(self) -> list[float]:
        return [leaf.cost for leaf in self.leaves if leaf.cost is not None]

    @property
    def bound(self) -> float:
        return min(self.costs, default=0.0) * self.slack

    @property
    def leaf(self) -> Tree | None:
        return None if self.children else self

    def price(self) -> tuple[float, Tree] | None:
        return None if self.cost is None else (self.cost, self)

    def open(self, below: float) -> list[Tree]:
        return [child for child in self.children if child.bound < below]


SLACK = st.floats(0, 1)
LEAVES = st.builds(Tree, SLACK, st.none() | st.integers(1, 20).map(float))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.builds(Tree, SLACK, st.none(), st.lists(inner, min_size=1, max_size=4)),
    max_leaves=20,
)


@given(TREES, st.sampled_from([0.0, 0.1, 0.5]))
def test_no_leaf_costs_less_than_the_tolerance_permits(root: Tree, tolerance: float) -> None:
    found = best_first([root], Tree.price, id, top=3, tolerance=tolerance)
    assert bool(found.best) == bool(root.costs)
    assert not found.cut
    if root.costs:
        least = min(root.costs)
        assert found.bound <= least <= found.best[0][0]
        assert found.best[0][0] * (1 - tolerance) <= least
        assert found.gap <= tolerance + 1e-9
        assert [cost for cost, _ in found.best] == sorted(cost for cost, _ in found.best)


def test_subtrees_above_the_best_cost_stay_closed() -> None:
    far = Tree(1.0, children=[Tree(1.0, 9.0), Tree(1.0, 8.0)])
    found = best_first([far, Tree(1.0, 3.0)], Tree.price, id)
    assert (found.priced, found.opened) == (1, 1)


def test_nodes_with_close_bounds_take_turns_with_nodes_of_lower_bounds() -> None:
    far = [Tree(0.5, children=[Tree(0.5, 9.0)]) for _ in range(9)]
    for _ in range(2):
        far = [Tree(0.5, children=[each]) for each in far]
    found = best_first([*far, Tree(0.9, 8.0)], Tree.price, id, tolerance=0.5)
    assert (found.priced, found.opened, found.best[0][0]) == (1, 4, 8.0)


def test_one_key_has_one_place() -> None:
    leaves = [Tree(0.0, cost) for cost in (5.0, 3.0, 4.0, 7.0)]
    found = best_first(leaves, Tree.price, lambda leaf: leaf.cost == 7.0, top=3)
    assert [cost for cost, _ in found.best] == [3.0, 7.0]


def test_a_known_solution_counts_from_the_start() -> None:
    leaves = [Tree(1.0, cost) for cost in (3.0, 5.0)]
    known = [(4.0, Tree(1.0, 4.0))]
    found = best_first(leaves, Tree.price, id, known=known, top=2)
    assert [cost for cost, _ in found.best] == [3.0, 4.0]
    assert best_first(leaves[1:], Tree.price, id, known=known).priced == 0


def test_a_priced_leaf_opens_into_the_others_of_its_set() -> None:
    class Some(Tree):
        leaf = property(lambda self: self.children[0])

    some = Some(0.5, children=[Tree(0.5, 6.0), Tree(0.5, 4.0)])
    assert best_first([some], Tree.price, id).best[0][0] == 4.0


def test_a_time_limit_leaves_a_gap() -> None:
    @dataclass
    class Endless(Tree):
        """Each level has a better leaf, and never ends."""

        depth: int = 1

        @property
        def bound(self) -> float:
            return 1.0

        @property
        def leaf(self) -> None:
            return None

        def open(self, below: float) -> list[Tree]:
            return [Tree(0.5, 1 + 1 / self.depth), Endless(0.0, depth=self.depth + 1)]

    found = best_first([Endless(0.0)], Tree.price, id, seconds=0.05)
    assert found.cut
    assert found.bound <= 1.0
    assert found.gap > 0


def test_runners_up_come_after_the_proof() -> None:
    """The tolerance ends the proof at the first leaf, whose runners-up are within it."""
    leaves = [Tree(1.0, cost) for cost in (10.0, 11.0, 12.0, 13.0)]
    root = Tree(1.0, None, leaves)
    found = best_first([root], Tree.price, id, top=3, tolerance=0.5)
    assert [cost for cost, _ in found.best] == [10, 11, 12]
    assert found.bound == 5 and not found.cut
    assert best_first([root], Tree.price, id, top=1, tolerance=0.5).priced == 1
