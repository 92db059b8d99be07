"""Where a search begins: single pools, whole pools, and smaller clusters of the same kinds."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import DEVICES, cluster_of, profile_of, small_model

from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.plan import Limits, Proposal, propose
from hetcomm.plan.search import starts
from hetcomm.plan.search.nodes import Search
from hetcomm.plan.search.propose import search_of
from hetcomm.plan.search.search import search
from hetcomm.plan.search.space import stage_groups
from hetcomm.plan.search.starts import Effort, scale, search_from_starts

MODEL = small_model()
PROFILE = profile_of(MODEL, DEVICES, tensors=(1, 2), micro_batches=(1, 2, 4))
LIMITS = Limits(micro_batches=(1, 2), schedules=("1f1b",), recompute=(False,), seconds=20)


def proposal(counts: dict[str, int], rate: int, batch: int = 12) -> Proposal:
    return propose(cluster_of(counts, ranks=2, rate=rate), MODEL, PROFILE, batch, LIMITS)


def root(counts: dict[str, int], batch: int, limits: Limits = LIMITS) -> Search:
    return search_of(cluster_of(counts, ranks=2), MODEL, PROFILE, batch, limits, None)


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([10**8, 10**10, 10**12]))
def test_more_devices_never_give_fewer_samples(a: int, b: int, rate: int) -> None:
    together = proposal({"A100": a, "V100": b}, rate).best.prediction.seconds
    for alone in ({"A100": a}, {"V100": b}):
        assert together <= proposal(alone, rate).best.prediction.seconds * 1.005


def test_whole_pools_come_before_parts_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    every = root({"A100": 2, "V100": 2, "H100": 2}, 4)
    full = replace(every, space=replace(every.space, full=True))
    pools, layers = every.terms.problem.pools, every.space.layers
    for group in stage_groups(full.terms, full.space):
        for _, shape in group.shapes(full.terms, full.space, float("inf")):
            for (part,), stages in shape.runs:
                assert stages == min(pools[part.pool].capacity(part.width) // part.count, layers)
    least = search(full, tolerance=0.0).best[0][0]
    searched = []

    def noted(of: Search, **given: Any) -> Any:
        searched.append(of.space.full)
        return search(of, **given)

    monkeypatch.setattr(starts, "search", noted)
    assert search_from_starts(every, Effort(3, 0.0, 20)).best[0][0] <= least
    assert searched == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("counts", "batch", "expected"),
    [
        ({"A100": 8}, 16, 1),  # not many
        ({"A100": 16}, 16, 2),
        ({"A100": 32, "V100": 16}, 16, 8),  # 6 is no divisor of the batch
        ({"A100": 64, "V100": 4}, 36, 1),  # nine times is more than the hosts of V100
        ({"A100": 16}, 13, 1),
    ],
)
def test_a_smaller_cluster_divides_the_batch_and_all_pools(
    counts: dict[str, int], batch: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "MANY", 8)
    assert scale(root(counts, batch)) == expected


def test_no_host_is_left_out_where_every_rank_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "MANY", 8)
    assert scale(root({"A100": 18}, 12)) == 3
    assert scale(root({"A100": 14}, 12)) == 2
    assert scale(root({"A100": 14}, 12, replace(LIMITS, every_rank=True))) == 1


def test_unequal_hosts_have_no_smaller_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "MANY", 2)
    nics = (Nic(10**10, 10**10),)
    cluster = Cluster(
        tuple(Host(f"h{i}", ranks, nics, device="A100") for i, ranks in enumerate((2, 1, 2, 1)))
    )
    assert scale(search_of(cluster, MODEL, PROFILE, 12, LIMITS, None)) == 1


@pytest.mark.parametrize("counts", [{"A100": 16}, {"A100": 16, "V100": 8}])
def test_layouts_of_a_smaller_cluster_serve_the_larger_one(
    counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = root(counts, 48)
    effort = Effort(3, 0.1, 3)
    bound = search_from_starts(every, effort).bound
    monkeypatch.setattr(starts, "MANY", 8)
    times = scale(every)
    found = list(starts._enlarged(every, times, effort))
    assert times > 1 and found
    for seconds, priced in found:
        assert bound <= seconds * (1 + 1e-9)
        assert priced.layout.batch == 48
        assert sum(priced.layout.micro_batches) * priced.layout.micro_batch == 48
        assert priced.layout.replicas % times == 0
        assert not priced.prediction.over
    assert search_from_starts(every, effort).best[0][0] <= min(cost for cost, _ in found)
