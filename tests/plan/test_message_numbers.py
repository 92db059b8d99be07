"""Message numbers have twelve bits in a tag. No plan needs more."""

from collections import Counter

import pytest
from generated import topology_of

from hetcomm import _core

NUMBERS = 1 << 12
MANY = 20  # islands, of which a ring of long sums needs 38 messages for each of 128 chunks
RING = "hierarchical_ring"


def spec_of(count: int) -> _core.Spec:
    return _core.Spec(_core.Collective.all_reduce, count=count)


def ring_of(count: int) -> _core.Plan:
    table = _core.SelectionTable(f"all_reduce:0-inf={RING}")
    return _core.Planner(topology_of([1] * MANY), table).plan(spec_of(count), 0)


def applies(count: int) -> bool:
    try:
        return ring_of(count).algorithm == RING
    except _core.InvalidArgumentError:
        return False


# The longest sums for which the ring applies, and the shortest for which it does not.
LONGEST = next(1 << bits for bits in range(33, 20, -1) if applies(1 << bits))
TOO_LONG = 2 * LONGEST


def test_a_ring_with_too_many_messages_does_not_apply() -> None:
    choice = _core.Planner(topology_of([1] * MANY)).choose(spec_of(TOO_LONG))
    reasons = {one.algorithm.name: one.rejected for one in choice.candidates}
    assert "needs more than 4096 messages from rank 0 to rank" in reasons[RING]
    assert reasons["hierarchical_scatter"] == ""
    assert choice.algorithm.name != RING


def test_a_ring_that_is_asked_for_is_refused_with_the_reason() -> None:
    with pytest.raises(_core.InvalidArgumentError, match=f"names {RING}, which needs more than"):
        ring_of(TOO_LONG)
    with pytest.raises(_core.InvalidArgumentError, match=f"{RING} needs more than 4096 messages"):
        _core.Planner(topology_of([1] * MANY)).plan_all(spec_of(TOO_LONG), RING)


def test_all_sizes_of_a_class_have_the_same_algorithms() -> None:
    """So the first call of a class does not decide for a later one."""
    assert applies(2 * LONGEST - 1)
    assert not applies(2 * TOO_LONG - 1)


def test_no_two_messages_to_a_rank_have_one_number() -> None:
    for count in [LONGEST, 2 * LONGEST - 1]:
        steps = ring_of(count).steps
        sent = Counter((step.peer, step.tag) for step in steps if step.kind.name == "send")
        assert max(sent.values()) == 1
        assert NUMBERS // 4 < len(sent) <= NUMBERS
        assert max(tag for _, tag in sent) < NUMBERS


def test_the_checker_reports_a_number_that_does_not_fit() -> None:
    topology = topology_of([1, 1])
    plans = _core.Planner(topology).plan_all(spec_of(10), "hierarchical_direct")
    for plan in plans:
        steps = plan.steps
        for step in steps:
            step.tag += NUMBERS if step.kind.name in ("send", "recv") else 0
        plan.steps = steps
    errors = _core.check(topology, plans)
    assert errors and all("expected a message number below 4096" in error for error in errors)
