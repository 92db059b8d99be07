"""Orders of passes: complete, possible, with the bubbles and the memory of their papers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import busy

import hetcomm
from hetcomm.plan.prediction.schedules import most_held, order
from hetcomm.plan.prediction.simulate import Costs, simulate

SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2), ("interleaved", 3)]


def costs_of(schedule: str, stages: int, chunks: int) -> Costs:
    """A forward pass of a whole stage takes 1 second, a backward pass 2."""
    virtual = stages * chunks
    if schedule == "zero_bubble":
        return Costs((1.0,) * virtual, (1.0,) * virtual, weights=(1.0,) * virtual)
    return Costs((1 / chunks,) * virtual, (2 / chunks,) * virtual)


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@settings(deadline=None)
@given(stages=st.integers(1, 6), groups=st.integers(1, 4))
def test_each_pass_occurs_once_and_forward_comes_first(
    schedule: str, chunks: int, stages: int, groups: int
) -> None:
    micro_batches = groups * stages
    for passes in order(schedule, stages, micro_batches, chunks):
        assert len(set(passes)) == len(passes)
        for what in {each.what for each in passes}:
            found = sorted((e.micro_batch, e.chunk) for e in passes if e.what == what)
            assert found == [(m, c) for m in range(micro_batches) for c in range(chunks)]
        for each in passes:
            if each.what == "backward":
                forward = each._replace(what="forward")
                assert passes.index(forward) < passes.index(each)
            if each.what == "weights":
                assert passes.index(each._replace(what="backward")) < passes.index(each)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 2), (4, 8), (8, 16), (3, 9)])
def test_bubbles_are_those_of_the_papers(stages: int, micro_batches: int) -> None:
    def bubble(schedule: str, chunks: int = 1) -> float:
        costs = costs_of(schedule, stages, chunks)
        timeline = simulate(order(schedule, stages, micro_batches, chunks), costs)
        step = max(timeline.ends)
        return (step - busy(timeline, 0)) / step

    p, m = stages, micro_batches
    assert bubble("gpipe") == pytest.approx((p - 1) / (m + p - 1))
    assert bubble("1f1b") == pytest.approx((p - 1) / (m + p - 1))
    for v in (2, 3):  # arXiv 2104.04473: (p - 1) / v passes of each kind idle
        assert bubble("interleaved", v) == pytest.approx((p - 1) / (v * m + p - 1))
    # arXiv 2401.10241, table 2: ZB-H1 idles (p - 1) (F + B - W)
    assert bubble("zero_bubble") == pytest.approx((p - 1) / (3 * m + p - 1))


@settings(deadline=None)
@given(stages=st.integers(1, 8), micro_batches=st.integers(1, 20))
def test_a_stage_keeps_as_many_activations_as_its_schedule_says(
    stages: int, micro_batches: int
) -> None:
    for s in range(stages):
        assert most_held("gpipe", stages, micro_batches, s, [1.0]) == micro_batches
        assert most_held("1f1b", stages, micro_batches, s, [1.0]) == min(stages - s, micro_batches)
        # Stage s puts off the pass for weights by s micro-batches.
        assert most_held("zero_bubble", stages, micro_batches, s, [1.0]) == min(
            stages, micro_batches
        )


def test_chunks_keep_their_own_sizes() -> None:
    # Stage 1 goes forward with both micro-batches in chunk 0, then one at a time in chunk 1.
    assert most_held("interleaved", 2, 2, 1, [1.0, 10.0]) == 12.0
    # Stage 0 goes forward with both in both chunks, and with 4 micro-batches once more.
    assert most_held("interleaved", 2, 2, 0, [1.0, 10.0]) == 22.0
    assert most_held("interleaved", 2, 4, 0, [1.0, 10.0]) == 23.0


def test_impossible_orders_are_refused() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match="a multiple of 4 stages, got 6"):
        order("interleaved", 4, 6, 2)
    with pytest.raises(hetcomm.InvalidArgumentError, match="got 1f1b of 2 chunks"):
        order("1f1b", 4, 8, 2)
    with pytest.raises(hetcomm.InvalidArgumentError, match="at least 1, got 0"):
        order("1f1b", 4, 0)
