"""The choice of an algorithm, selection tables, impossible specs and concurrent callers."""

import threading

import pytest
from generated import topology_of

from hetcomm._core import (
    Collective,
    Dtype,
    InvalidArgumentError,
    Planner,
    ReduceOp,
    SelectionTable,
    Spec,
)

MI = 1 << 20


def test_choice_does_not_depend_on_earlier_plans() -> None:
    topology = topology_of([2, 3, 4])
    specs = [Spec(Collective.all_reduce, count=count) for count in (1000, 600, 1023, 513, 900)]
    forward, backward = Planner(topology), Planner(topology)
    names = {spec: forward.plan(spec, 0).algorithm for spec in specs}
    assert names == {spec: backward.plan(spec, 8).algorithm for spec in reversed(specs)}


@pytest.mark.parametrize("sizes", [[1] * 3, [2] * 4, [1] * 8])
def test_equal_uplinks_have_a_ring_for_long_buffers(sizes: list[int]) -> None:
    """Scatter and halving are predicted to be as fast, but their flows meet at a switch's port."""
    choice = Planner(topology_of(sizes)).choose(Spec(Collective.all_reduce, count=4 * MI))
    assert choice.algorithm.name == "hierarchical_ring"
    totals = {one.algorithm.name: one.cost.total for one in choice.candidates if not one.rejected}
    ring = totals.pop("hierarchical_ring")
    assert any(abs(total - ring) <= 0.005 * ring for total in totals.values())
    assert choice.why.endswith("which counts as equal") == (ring > min(totals.values()))


def test_choice_is_among_the_cheapest_and_says_why() -> None:
    planner = Planner(topology_of([2, 2, 2]))
    choice = planner.choose(Spec(Collective.all_reduce, count=MI))
    names = [candidate.algorithm.name for candidate in choice.candidates]
    ways = ("direct", "ring", "halving", "scatter", "doubling", "nested")
    assert names == ["flat", *(f"hierarchical_{way}" for way in ways)]
    assert choice.candidates[0].rejected == "needs one island; there are 3"
    priced = [candidate for candidate in choice.candidates if not candidate.rejected]
    cheapest = min(candidate.cost.total for candidate in priced)
    chosen = next(one for one in priced if one.cost.total <= 1.005 * cheapest)
    assert choice.algorithm.name == chosen.algorithm.name
    assert "predicted" in choice.why
    assert planner.plan(Spec(Collective.all_reduce, count=MI), 0).algorithm == choice.algorithm.name


def test_table_overrides_the_model() -> None:
    table = SelectionTable("all_reduce:0-4k=hierarchical_ring,4k-inf=hierarchical_direct")
    planner = Planner(topology_of([2, 2, 2]), table)
    small, large = (Spec(Collective.all_reduce, count=count) for count in (1023, 1024))
    assert planner.plan(small, 0).algorithm == "hierarchical_ring"
    assert planner.plan(large, 0).algorithm == "hierarchical_direct"
    assert planner.plan_all(large)[3].algorithm == "hierarchical_direct"
    assert "table" in planner.choose(small).why


def test_table_with_an_unknown_algorithm_is_rejected_at_once() -> None:
    with pytest.raises(InvalidArgumentError, match=r"all_reduce: expected one of flat, .*\"tree\""):
        Planner(topology_of([2]), SelectionTable("all_reduce:0-inf=tree"))


def test_table_with_an_inapplicable_algorithm_is_rejected() -> None:
    planner = Planner(topology_of([2, 2]), SelectionTable("all_reduce:0-inf=flat"))
    with pytest.raises(InvalidArgumentError, match="names flat, which needs one island"):
        planner.plan(Spec(Collective.all_reduce, count=1), 0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec(Collective.broadcast, root=4, count=1), "expected a root from 0 to 3; got 4"),
        (Spec(Collective.gather, root=-1, count=1), "expected a root from 0 to 3; got -1"),
        (Spec(Collective.all_reduce, op=ReduceOp.band, count=1), "band is not defined for float32"),
        (Spec(Collective.reduce, Dtype.bytes4, count=1), "sum is not defined for bytes4"),
        (Spec(Collective.all_gather, count=-1), "expected a count from 0"),
        (Spec(Collective.all_gather, count=2**62), "expected a count from 0"),
        (Spec(Collective.all_gather, count=1, in_place=True), "in place is for all_reduce"),
        (Spec(Collective.all_to_all, splits=[1] * 15), "expected 4 x 4 splits"),
        (Spec(Collective.all_to_all, splits=[1] * 6 + [-2] + [1] * 9), "got -2 from rank 1 to 2"),
        (Spec(Collective.reduce, splits=[1] * 16), "splits are for all_to_all only"),
        (Spec(Collective.send, count=1), "expected a collective"),
    ],
)
def test_an_impossible_spec_is_rejected(spec: Spec, message: str) -> None:
    planner = Planner(topology_of([2, 2]))
    for attempt in (planner.plan_all, planner.choose, lambda spec: planner.plan(spec, 0)):
        with pytest.raises(InvalidArgumentError) as caught:
            attempt(spec)
        assert message in str(caught.value)


def test_a_rank_outside_the_job_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="expected a rank from 0 to 3; got 4"):
        Planner(topology_of([2, 2])).plan(Spec(Collective.barrier), 4)


def test_one_planner_serves_many_threads() -> None:
    planner = Planner(topology_of([2, 3]))
    wanted = {
        count: [str(plan) for plan in planner.plan_all(Spec(Collective.all_reduce, count=count))]
        for count in range(300)
    }
    wrong: list[tuple[int, int]] = []

    def ask(rank: int) -> None:
        for count in range(300):  # 5 ranks x 300 counts: more than the cache holds
            plan = planner.plan(Spec(Collective.all_reduce, count=count), rank)
            if str(plan) != wanted[count][rank]:
                wrong.append((rank, count))

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert wrong == []


def test_specs_are_values() -> None:
    a = Spec(Collective.all_to_all, splits=[1, 2, 3, 4])
    b = Spec(Collective.all_to_all, splits=[1, 2, 3, 4])
    assert a == b and hash(a) == hash(b)
    assert len({a, b, Spec(Collective.all_to_all, splits=[1, 2, 3, 5])}) == 2
    assert [a.buffer_counts(r, 2) for r in range(2)] == [(3, 4), (7, 6)]
    assert a.largest_buffer(2) == 28
    assert str(Spec(Collective.reduce, count=8, root=1)) == "<Spec reduce sum float32 x 8, root 1>"
