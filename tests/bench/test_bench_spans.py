"""The parts of a call's time, computed from made-up steps."""

from __future__ import annotations

import pytest

from hetcomm import _core
from hetcomm.bench.legs import Legs, one_clock, shown_legs
from hetcomm.bench.spans import Call, Step, legs_of, predicted

SECOND = 10**9


def call(end: float, *steps: tuple[str, str, list[int], float, float], start: float = 0) -> Call:
    made = [
        Step(leg, kind, peers, int(at * SECOND), int(to * SECOND))
        for leg, kind, peers, at, to in steps
    ]
    return Call(int(start * SECOND), int(end * SECOND), made)


def legs(calls: list[Call], rank: int, one_clock: bool = True) -> dict[str, float]:
    return {leg: pytest.approx(time) for leg, time in legs_of(calls, rank, one_clock).items()}


def test_a_receiver_waits_for_its_sender() -> None:
    receiver = call(5, ("bridge", "recv", [1], 1, 5))
    sender = call(4, ("bridge", "send", [0], 3, 4))
    assert legs([receiver, sender], 0) == {"total": 5, "between": 1, "for 1": 2, "bridge": 2}
    assert legs([receiver, sender], 1) == {"total": 4, "between": 3, "bridge": 1}
    assert legs([receiver, sender], 0, one_clock=False) == {"total": 5, "between": 1, "bridge": 4}


def test_a_message_sent_before_its_receive_has_not_waited() -> None:
    calls = [
        call(3, ("bridge", "send", [1], 0, 1), ("bridge", "send", [1], 1, 3)),
        call(3, ("bridge", "recv", [0], 2, 2.5), ("bridge", "recv", [0], 2, 3)),
    ]
    assert legs(calls, 0) == {"total": 3, "bridge": 2, "for 1": 1}  # the second message has waited


def test_an_island_waits_for_its_last_member() -> None:
    calls = [
        call(4, ("island", "island", [1, 2], 0, 3), ("island", "local", [], 3, 4)),
        call(3, ("island", "island", [0, 2], 2, 3)),
        call(3, ("island", "island", [0, 1], 1, 3)),
    ]
    assert legs(calls, 0) == {"total": 4, "for 1": 2, "island": 2}
    assert legs(calls, 2) == {"total": 3, "between": 1, "for 1": 1, "island": 1}


def test_legs_overlap_and_waits_do_not() -> None:
    calls = [
        call(6, ("bridge", "recv", [1], 0, 4), ("island", "local", [], 1, 3),
             ("bridge", "recv", [2], 0, 6)),
        call(4, ("bridge", "send", [0], 2, 4)),
        call(6, ("bridge", "send", [0], 5, 6)),
    ]  # fmt: skip
    # It waits for rank 1, which comes first; works; then waits for rank 2.
    assert legs(calls, 0) == {"total": 6, "for 1": 1, "island": 2, "bridge": 3, "for 2": 1}


def test_the_prediction_has_the_same_legs() -> None:
    topology = _core.Topology([_core.RankInfo(host=host) for host in "aabb"])
    spec = _core.Spec(_core.Collective.all_reduce, _core.Dtype.float32, count=1 << 20)
    plans = _core.Planner(topology).plan_all(spec)
    calls = predicted(plans, topology)
    cost = _core.predict(topology, plans)
    found = [legs_of(calls, rank) for rank in range(4)]
    assert max(each["total"] for each in found) == pytest.approx(cost.total * 1e-9)
    assert all(0 < each["bridge"] <= each["total"] and each["island"] > 0 for each in found)
    for each in found:
        assert each["total"] >= sum(time for leg, time in each.items() if leg.startswith("for "))


def test_each_leg_is_shown_for_its_longest_rank() -> None:
    inside = [
        {"total": 3.0, "island": 1.0, "for 2": 1.5, "for 1": 0.5},
        {"total": 4.0, "for 0": 1.0},
    ]
    found = shown_legs(Legs(None, None, 0, inside, [{"total": 2.0, "island": 2.0}] * 2))
    assert found == [
        ("total", 1, 4.0, 2.0), ("island", 0, 1.0, 2.0), ("waits, mostly for 2", 0, 2.0, 0.0)
    ]  # fmt: skip
    assert shown_legs(None) == shown_legs(Legs(None, None, 0)) == []


def test_contradicting_clocks_are_detected() -> None:
    assert one_clock([(1, 5), (2, 4)]) and not one_clock([(1, 5), (6, 9)])
