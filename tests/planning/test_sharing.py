"""Ranks that share processors: the replay, predictions, the search, and the profile's figure."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import DEVICES, MODEL, busy, layout, network, profile

import hetcomm
from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.plan import Device, Limits, Profile, Runtime, predict, propose
from hetcomm.plan.measure import job, timing
from hetcomm.plan.measure.timing import Clock, throughput
from hetcomm.plan.prediction.schedules import Pass, order
from hetcomm.plan.prediction.sharing import Pipeline, simulate_shared
from hetcomm.plan.prediction.simulate import Costs, simulate
from hetcomm.plan.search.settings import SettingsSpace


def pipeline(schedule: str, stages: int, micro_batches: int, costs: Costs) -> Pipeline:
    chunks = len(costs.forward) // stages
    return Pipeline(order(schedule, stages, micro_batches, chunks), costs, [1] * stages)


def drawn(draw: st.DataObject, virtual: int) -> Costs:
    def times(low: float, high: float, count: int) -> tuple[float, ...]:
        return tuple(draw.draw(st.floats(low, high)) for _ in range(count))

    return Costs(
        times(1, 4, virtual), times(1, 4, virtual), times(0, 1, virtual - 1),
        times(0, 1, virtual - 1), (0.0, *times(0, 1, virtual - 1)),
        (*times(0, 1, virtual - 1), 0.0), times(1, 4, virtual),
    )  # fmt: skip


SCHEDULES = st.sampled_from([("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2)])


@settings(max_examples=60, deadline=None)
@given(st.data(), SCHEDULES, st.integers(1, 4), st.integers(1, 3))
def test_enough_processors_change_nothing(
    draw: st.DataObject, schedule: tuple[str, int], stages: int, groups: int
) -> None:
    name, chunks = schedule
    costs = drawn(draw, stages * chunks)
    each = pipeline(name, stages, groups * stages, costs)
    wanted = simulate(each.orders, costs)
    for found in simulate_shared([each, each], 2 * stages):
        assert found.ends == pytest.approx(wanted.ends)
        for mine, theirs in zip(found.spans, wanted.spans, strict=True):
            assert [span.what for span in mine] == [span.what for span in theirs]


@settings(max_examples=60, deadline=None)
@given(st.data(), SCHEDULES, st.integers(1, 3), st.integers(1, 3), st.floats(0.5, 4))
def test_no_step_is_faster_than_its_work_or_its_pipeline(
    draw: st.DataObject, schedule: tuple[str, int], stages: int, groups: int, processors: float
) -> None:
    name, chunks = schedule
    costs = drawn(draw, stages * chunks)
    each = pipeline(name, stages, groups * stages, costs)
    timelines = simulate_shared([each, each], processors)
    alone = simulate(each.orders, costs)
    work = 2 * sum(busy(alone, stage) for stage in range(stages))
    step = max(end for timeline in timelines for end in timeline.ends)
    assert step >= max(work / processors, max(alone.ends)) - 1e-6
    for timeline in timelines:
        for s, spans in enumerate(timeline.spans):
            assert all(a.end <= b.start + 1e-9 for a, b in pairwise(spans))
            waited = sum(timeline.waits[s].values())
            assert busy(timeline, s) + waited == pytest.approx(timeline.ends[s])


def test_two_ranks_on_one_processor_take_turns() -> None:
    each = pipeline("gpipe", 1, 1, Costs((1,), (2,)))
    for timeline in simulate_shared([each, each], 1):
        assert [(s.what, s.start, s.end) for s in timeline.spans[0]] == [
            ("forward", 0, 2),
            ("backward", 2, 6),
        ]


def test_a_bubble_leaves_its_processor_to_others() -> None:
    """A pipeline of one micro-batch never needs two processors."""
    each = pipeline("gpipe", 2, 1, Costs((1, 1), (2, 2), (0,), (0,)))
    (timeline,) = simulate_shared([each], 1)
    assert max(timeline.ends) == pytest.approx(6)


def test_an_order_without_end_is_refused() -> None:
    orders = [[Pass("backward", 0), Pass("forward", 0)], [Pass("forward", 0), Pass("backward", 0)]]
    with pytest.raises(hetcomm.InvalidArgumentError, match="passes whose input comes"):
        simulate_shared([Pipeline(orders, Costs((1, 1), (1, 1), (0,), (0,)), [1, 1])], 1)


def test_passes_and_optimizer_take_longer_on_shared_processors() -> None:
    plan = layout((6,), replicas=4)
    own, shared = profile(), replace(profile(), processors=2.0)

    def parts(of: Profile) -> dict[str, float]:
        kinds = ["fast"] * 4
        runtime = Runtime(overlap_gradients=False)
        return predict(MODEL, plan, of, network(4), kinds, runtime).parts[0, 0]

    before, after = parts(own), parts(shared)
    for what in ("forward", "backward", "optimizer"):
        assert after[what] == pytest.approx(2 * before[what])
    assert after["gradients"] == before["gradients"]  # between hosts


def test_reductions_inside_a_host_hide_behind_no_pass() -> None:
    plan = layout((3, 3), replicas=2, overlap_optimizer=True)
    shared = replace(profile(), processors=2.0)
    kinds, hosts = ["fast"] * 4, network(4, per_host=2)
    own = predict(MODEL, plan, profile(), hosts, kinds).parts[0, 0]["gradients"]
    found = predict(MODEL, plan, shared, hosts, kinds).parts[0, 0]["gradients"]
    assert found == pytest.approx(2 * 3 * own)  # crowded twice; of 3 layers one was exposed


def test_blocking_transfers_are_refused() -> None:
    shared = replace(profile(), processors=1.0)
    with pytest.raises(hetcomm.InvalidArgumentError, match="transfers beside passes"):
        predict(MODEL, layout(), shared, network(2), ["fast"] * 2, Runtime(blocking=True))


def test_a_search_is_proved_by_the_work_of_all_ranks() -> None:
    nics = (Nic(10**10, 10**10),)
    cluster = Cluster((Host("a", 2, nics, device="fast"), Host("b", 2, nics, device="fast")))
    limits = Limits(tensors=(1,), every_rank=True, micro_batches=(1, 2, 4))
    large = replace(profile(), devices={name: Device(1e12, 1e12, 1e10) for name in DEVICES})
    own = propose(cluster, MODEL, large, 8, limits)
    found = propose(cluster, MODEL, replace(large, processors=2.0), 8, limits)
    assert not found.found.cut and found.found.gap <= 0.0101
    assert found.best.prediction.seconds > 1.5 * own.best.prediction.seconds
    assert found.upper_bound == pytest.approx(own.upper_bound / 2)


def test_a_search_offers_only_what_runs() -> None:
    every = list(SettingsSpace().settings(stages=4, micro_batches=(2,), layers=8))
    assert {each.schedule for each in every} == {"gpipe", "zero_bubble"}
    assert {each.weights for each in every if each.schedule == "zero_bubble"} == {"rank"}
    unequal = SettingsSpace().settings(stages=1, micro_batches=(2, 3), layers=8)
    assert {each.weights for each in unequal} == {"rank"}


def test_processors_stay_in_the_file_and_join() -> None:
    shared = replace(profile(), processors=2.5)
    assert Profile.parse(shared.text()).processors == 2.5
    assert shared.without(["slow"]).processors == 2.5
    parts = [shared.without(["slow"]), replace(profile(), processors=2.0).without(["fast"])]
    assert job.join(parts).processors == 2.0
    with pytest.raises(hetcomm.InvalidArgumentError, match="profile: processors"):
        replace(profile(), processors=0.0)


class OfOneRank:
    """A control channel of rank 0; other ranks answer the same."""

    rank = 0

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def run_on_all(self, action: object) -> list[object]:
        return [action()] * self.ranks  # type: ignore[operator]


@pytest.mark.parametrize(("together", "expected"), [(50.0, 2.0), (75.0, 3.0), (95.0, None)])
def test_processors_follow_from_speeds(together: float, expected: float | None) -> None:
    class Measured:
        def blocks(self) -> None: ...

        def seconds(self, blocks: None) -> float:
            return 0.01

        def rate(self, blocks: None) -> float:
            return together

    places = [["cpu", host] for host in "aabb"]
    assert job._processors(OfOneRank(4), Measured(), places) == expected  # type: ignore[arg-type]


def test_throughput_counts_repetitions_of_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = Clock(torch.device("cpu")), [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def part() -> None:
        now[0] += 4.0 if now[0] < 5 or now[0] > 15 else 0.5

    assert throughput(clock, (part,), 10.0) == 2.0
    now[0] = 0.0
    assert throughput(clock, (part,), 0.0) == 0.25
