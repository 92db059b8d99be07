"""Closed forms of the search, against the orders of passes; levels; large groups of ranks."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_inputs import DEVICES, cluster_of, profile_of, small_model

from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.explain import topology_of
from hetcomm.plan import PlannedNetwork, Runtime
from hetcomm.plan.layout import SCHEDULES
from hetcomm.plan.prediction.schedules import order
from hetcomm.plan.search.pools import pools_of
from hetcomm.plan.search.settings import Settings, SettingsSpace, in_flight
from hetcomm.plan.search.terms import Problem, distinct_levels


@given(st.sampled_from(SCHEDULES), st.integers(1, 6), st.integers(1, 4), st.integers(2, 4))
def test_passes_in_flight(schedule: str, stages: int, groups: int, chunks: int) -> None:
    several = schedule == "interleaved"
    micro_batches = groups * stages if several else groups
    settings = Settings(schedule, chunks if several else 1, False, "rank", "rank", "none")
    passes = order(schedule, stages, micro_batches, settings.chunks)
    last = "weights" if schedule == "zero_bubble" else "backward"
    for stage, own in enumerate(passes):
        changes = [(each.what == "forward") - (each.what == last) for each in own]
        assert in_flight(settings, stages, micro_batches, stage) == max(accumulate(changes))


def test_settings_are_those_that_a_pipeline_can_have() -> None:
    space = SettingsSpace(levels=("rank", "cluster"))
    assert set(space.schedules) == set(SCHEDULES)
    alone = list(space.settings(stages=1, micro_batches=(4,), layers=6))
    assert {each.schedule for each in alone} == {"1f1b"}
    assert {(each.weights, each.states) for each in alone} == {
        ("rank", "rank"),
        ("rank", "cluster"),
        ("cluster", "cluster"),
    }
    three = list(space.settings(stages=3, micro_batches=(4,), layers=6))
    assert {each.schedule for each in three} == {"1f1b", "gpipe", "zero_bubble"}
    whole = list(space.settings(stages=3, micro_batches=(6,), layers=6))
    assert {each.chunks for each in whole if each.schedule == "interleaved"} == {2}


@pytest.mark.parametrize(
    ("vendors", "expected"),
    [
        (("cpu", "cpu"), ["rank", "host", "cluster"]),
        (("nvidia", "nvidia"), ["rank", "host", "cluster"]),
        (("nvidia", "nvidia", "amd"), ["rank", "host", "island", "cluster"]),
    ],
)
def test_equal_levels_are_searched_once(vendors: tuple[str, ...], expected: list[str]) -> None:
    nics = (Nic(10**10, 10**10, "infiniband"),)
    cluster = Cluster(tuple(Host(f"h{i}", 2, nics, vendor) for i, vendor in enumerate(vendors)))
    model = small_model()
    problem = Problem(
        model,
        profile_of(model, DEVICES),
        PlannedNetwork(topology_of(cluster)),
        [],
        pools_of(cluster),
        Runtime(),
    )
    assert distinct_levels(problem) == expected


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("counts", [{"A100": 32}, {"A100": 24, "V100": 24}])
def test_large_groups_cost_about_what_their_plans_cost(name: str, counts: dict[str, int]) -> None:
    class Exact(PlannedNetwork):
        LARGEST = 64

    cluster = cluster_of(counts, ranks=2)
    topology = topology_of(cluster)
    group = [list(range(0, cluster.ranks, 2)), list(range(1, cluster.ranks, 2))]
    seconds = Exact(topology).collective(name, group, 100 << 20)
    assert PlannedNetwork(topology).collective(name, group, 100 << 20) == pytest.approx(
        seconds, rel=0.05
    )
