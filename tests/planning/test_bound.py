"""Lower bounds of a step, against the replay of schedules."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcomm.plan.prediction.schedules import order
from hetcomm.plan.prediction.simulate import Costs, simulate
from hetcomm.plan.search.bound import Pipeline, step_bound

SECONDS = st.integers(0, 20).map(lambda tenths: tenths / 10)


@st.composite
def replays(draw: st.DrawFn) -> tuple[str, int, int, Costs]:
    """schedule, stages, micro-batches, costs"""
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero_bubble"]))
    stages = draw(st.integers(1, 5))
    chunks = draw(st.integers(2, 3)) if schedule == "interleaved" else 1
    groups = draw(st.integers(1, 3))
    micro_batches = groups * stages if schedule == "interleaved" else draw(st.integers(1, 9))

    def several(count: int) -> list[float]:
        return draw(st.lists(SECONDS, min_size=count, max_size=count))

    virtual = stages * chunks
    links = several(stages)  # to the next stage, and from the last one to the first one
    way = [links[chunk % stages] for chunk in range(virtual - 1)]
    weights = several(virtual) if schedule == "zero_bubble" else [0.0] * virtual
    costs = Costs(several(virtual), several(virtual), way, way, weights=weights)
    return schedule, stages, micro_batches, costs


def pipeline_of(schedule: str, stages: int, micro_batches: int, costs: Costs) -> Pipeline:
    def by_chunk(values: Sequence[float]) -> np.ndarray:
        return np.asarray(values).reshape(-1, stages)

    chunks = len(costs.forward) // stages
    passes = order(schedule, stages, micro_batches, chunks)
    warm = [next(i for i, each in enumerate(own) if each.what != "forward") for own in passes]
    weights = by_chunk(costs.weights or [0.0] * len(costs.forward))
    return Pipeline(
        forward=by_chunk(costs.forward),
        backward=by_chunk(costs.backward) + weights,
        deferred=weights.sum(axis=0),
        transfers=np.asarray(costs.activation[: stages - 1]),
        tails=np.zeros(stages),
        micro_batches=micro_batches,
        warm_up=None if chunks > 1 else warm,
        wrap=costs.activation[stages - 1] if chunks > 1 else 0.0,
    )


@settings(deadline=None, max_examples=400)
@given(replays(), st.data())
def test_no_replay_is_faster_than_its_bound(
    replay: tuple[str, int, int, Costs], data: st.DataObject
) -> None:
    schedule, stages, micro_batches, costs = replay
    pipeline = pipeline_of(*replay)
    tails = np.asarray(data.draw(st.lists(SECONDS, min_size=stages, max_size=stages)))
    passes = order(schedule, stages, micro_batches, len(costs.forward) // stages)
    ends = simulate(passes, costs).ends
    step = max(end + tail for end, tail in zip(ends, tails, strict=True))
    assert step_bound(replace(pipeline, tails=tails)) <= step + 1e-9


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bound_of_equal_stages_is_tight(schedule: str) -> None:
    costs = Costs([1.0] * 4, [2.0] * 4, [0.0] * 3, [0.0] * 3)
    bound = step_bound(pipeline_of(schedule, 4, 12, costs))
    assert bound == pytest.approx(max(simulate(order(schedule, 4, 12), costs).ends))


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("stages", [5, 8])
@pytest.mark.parametrize("transfer", [0.0, 0.5, 1.5, 3.0, 6.0])
def test_the_bound_of_equal_chunks_is_near(
    stages: int, chunks: int, groups: int, transfer: float
) -> None:
    """Transfers that take as long as passes, and longer, delay other chunks."""
    virtual, micro_batches = stages * chunks, stages * groups
    way = [transfer] * (virtual - 1)
    costs = Costs([1.0] * virtual, [2.0] * virtual, way, way)
    step = max(simulate(order("interleaved", stages, micro_batches, chunks), costs).ends)
    bound = step_bound(pipeline_of("interleaved", stages, micro_batches, costs))
    assert 0.88 * step <= bound <= step + 1e-9
