"""The replay of a pipeline, beside hand computation and two slow simulations."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import busy

import hetcomm
from hetcomm.plan.prediction.schedules import Pass, order
from hetcomm.plan.prediction.simulate import Costs, Timeline, simulate


def test_two_stages_by_hand_with_transfers_beside_passes() -> None:
    timeline = simulate(order("1f1b", 2, 2), Costs((2, 3), (4, 5), (1,), (1,)))
    spans = [[(s.what[0], s.micro_batch, s.start, s.end) for s in each] for each in timeline.spans]
    assert spans[1] == [("f", 0, 3, 6), ("b", 0, 6, 11), ("f", 1, 11, 14), ("b", 1, 14, 19)]
    assert spans[0] == [("f", 0, 0, 2), ("f", 1, 2, 4), ("b", 0, 12, 16), ("b", 1, 20, 24)]
    assert timeline.waits == [{"gradient": 12}, {"activation": 3}]


def test_blocking_transfers_wait_for_both_stages() -> None:
    timeline = simulate(order("1f1b", 2, 2), Costs((2, 3), (4, 5), (1,), (1,)), blocking=True)
    spans = [[(s.what[0], s.micro_batch, s.start, s.end) for s in each] for each in timeline.spans]
    # Stage 0 sends 0 from 2 to 3, then computes 1. After both, at 11, the gradient of 0 and the
    # activation of 1 cross one after the other.
    assert spans[0] == [("f", 0, 0, 2), ("f", 1, 3, 5), ("b", 0, 13, 17), ("b", 1, 22, 26)]
    assert spans[1] == [("f", 0, 3, 6), ("b", 0, 6, 11), ("f", 1, 13, 16), ("b", 1, 16, 21)]


def test_a_blocked_stage_sends_before_it_receives_from_another() -> None:
    costs = Costs((1, 1, 10), (1, 1, 1), (1, 1), (1, 1))
    timeline = simulate(order("gpipe", 3, 3), costs, blocking=True)
    # Stage 2 computes from 4 to 14, and takes 1 until 15. Only then stage 1 receives 2, until 16.
    assert [(s.start, s.end) for s in timeline.spans[1][:3]] == [(2, 3), (5, 6), (16, 17)]


def test_work_on_what_came_precedes_the_pass() -> None:
    costs = Costs((1, 1), (1, 1), (0.5,), (0.25,), receive=(0, 2), receive_gradient=(3, 0))
    timeline = simulate(order("gpipe", 2, 1), costs)
    assert [(s.what, s.start, s.end) for s in timeline.spans[1]] == [
        ("receive", 1.5, 3.5),
        ("forward", 3.5, 4.5),
        ("backward", 4.5, 5.5),
    ]
    assert timeline.ends[0] == 5.5 + 0.25 + 3 + 1


def test_a_stage_sends_one_activation_at_a_time() -> None:
    timeline = simulate(order("gpipe", 2, 3), Costs((1, 1), (1, 1), (10,), (0,)))
    starts = [s.start for s in timeline.spans[1] if s.what == "forward"]
    assert starts == [11, 21, 31]


def relaxed(orders: list[list[Pass]], costs: Costs) -> dict[tuple[str, int, int], float]:
    """Ends of passes, by repeating start = max(of what comes before) until nothing changes. Valid
    where no transfer is longer than a pass, so that no transfer waits for another."""
    stages, last = len(orders), len(costs.forward) - 1
    ends: dict[tuple[str, int, int], float] = {}
    table = {"forward": costs.forward, "backward": costs.backward, "weights": costs.weights}
    changed = True
    while changed:
        changed = False
        for s, passes in enumerate(orders):
            free = 0.0
            for each in passes:
                v = each.chunk * stages + s
                start = free
                if each.what == "forward" and v:
                    got = ends.get(("forward", each.micro_batch, v - 1), math.inf)
                    start = max(start, got + (costs.activation[v - 1] if stages > 1 else 0))
                if each.what == "backward" and v < last:
                    got = ends.get(("backward", each.micro_batch, v + 1), math.inf)
                    start = max(start, got + (costs.gradient[v] if stages > 1 else 0))
                free = start + table[each.what][v]
                key = (each.what, each.micro_batch, v)
                if ends.get(key, -1.0) != free:
                    ends[key] = free
                    changed = True
    return ends


def drawn_costs(draw: st.DataObject, virtual: int, weights: bool) -> Costs:
    def times(least: float, most: float, count: int) -> tuple[float, ...]:
        one = st.floats(least, most)
        return tuple(draw.draw(st.lists(one, min_size=count, max_size=count)))

    return Costs(
        times(1, 4, virtual),
        times(1, 4, virtual),
        times(0, 1, virtual - 1),
        times(0, 1, virtual - 1),
        weights=times(1, 4, virtual) if weights else (),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.sampled_from([("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2)]),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_replay_agrees_with_relaxation(
    draw: st.DataObject, schedule: tuple[str, int], stages: int, groups: int
) -> None:
    name, chunks = schedule
    costs = drawn_costs(draw, stages * chunks, name == "zero_bubble")
    orders = order(name, stages, groups * stages, chunks)
    wanted = relaxed(orders, costs)
    timeline = simulate(orders, costs)
    for s, spans in enumerate(timeline.spans):
        for span in spans:
            end = wanted[span.what, span.micro_batch, span.chunk * stages + s]
            assert span.end == pytest.approx(end)
    conserved(orders, costs, timeline)


def ticks(costs: Costs, micro_batches: int) -> int:
    """Two stages with blocking transfers of 1f1b, one second at a time. Both stages stand between
    passes while a transfer is under way."""
    orders = order("1f1b", 2, micro_batches)
    at, rest, now = [0, 0], [0, 0], 0
    owed: list[set[tuple[str, int]]] = [set(), set()]  # before the next pass of a stage
    transfer: tuple[str, int] | None = None
    left = 0

    def gap(s: int) -> None:
        done = orders[s][at[s] - 1] if at[s] else None
        if done and done.what == ("forward", "backward")[s]:
            owed[s].add((done.what, done.micro_batch))
        if at[s] < len(orders[s]) and orders[s][at[s]].what == ("backward", "forward")[s]:
            owed[s].add((orders[s][at[s]].what, orders[s][at[s]].micro_batch))

    gap(0)
    gap(1)
    while any(at[s] < len(orders[s]) or rest[s] or owed[s] for s in (0, 1)):
        moved = True
        while moved:  # all that happens at this instant
            moved = False
            for s in (0, 1):
                if not rest[s] and not owed[s] and at[s] < len(orders[s]):
                    table = costs.forward if orders[s][at[s]].what == "forward" else costs.backward
                    rest[s], at[s], moved = int(table[s]), at[s] + 1, True
            both = owed[0] & owed[1]
            if transfer is None and both and not (rest[0] or rest[1]):
                transfer, moved = min(both), True
                table = costs.activation if transfer[0] == "forward" else costs.gradient
                left = int(table[0])
        now += 1
        for s in (0, 1):
            if rest[s]:
                rest[s] -= 1
                if not rest[s]:
                    gap(s)
        if transfer is not None:
            left -= 1
            if not left:
                owed[0].discard(transfer)
                owed[1].discard(transfer)
                transfer = None
        assert now < 10_000
    return now


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=6, max_size=6), st.integers(1, 7))
def test_blocking_replay_agrees_with_ticks(times: list[int], micro_batches: int) -> None:
    f0, f1, b0, b1, a, g = times
    costs = Costs((f0, f1), (b0, b1), (a,), (g,))
    timeline = simulate(order("1f1b", 2, micro_batches), costs, blocking=True)
    assert max(timeline.ends) == ticks(costs, micro_batches)


def conserved(orders: list[list[Pass]], costs: Costs, timeline: Timeline) -> None:
    for s, spans in enumerate(timeline.spans):
        assert [(x.what, x.micro_batch, x.chunk) for x in spans if x.what != "receive"] == orders[s]
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(spans))
        waited = sum(timeline.waits[s].values())
        assert busy(timeline, s) + waited >= timeline.ends[s] - 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.data(), st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 5), st.integers(1, 8),
    st.booleans(),
)  # fmt: skip
def test_time_is_conserved_and_bounded(
    draw: st.DataObject, schedule: str, stages: int, micro_batches: int, blocking: bool
) -> None:
    costs = drawn_costs(draw, stages, False)
    orders = order(schedule, stages, micro_batches)
    timeline = simulate(orders, costs, blocking)
    conserved(orders, costs, timeline)
    step = max(timeline.ends)
    busiest = max(costs.forward[s] + costs.backward[s] for s in range(stages)) * micro_batches
    path = sum(costs.forward) + sum(costs.backward) + sum(costs.activation) + sum(costs.gradient)
    serial = micro_batches * path
    assert max(busiest, path) - 1e-6 <= step <= serial + 1e-6
    if not blocking:
        assert step <= max(simulate(orders, costs, True).ends) + 1e-6


def test_an_order_without_end_is_refused() -> None:
    orders = [[Pass("backward", 0), Pass("forward", 0)], [Pass("forward", 0), Pass("backward", 0)]]
    with pytest.raises(hetcomm.InvalidArgumentError, match="passes whose input comes"):
        simulate(orders, Costs((1, 1), (1, 1), (0,), (0,)))
    with pytest.raises(hetcomm.InvalidArgumentError, match="a multiple of 2 stages, got 3"):
        simulate(orders, Costs((1, 1, 1), (1, 1, 1)))
