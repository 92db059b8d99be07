"""The study of choices and plans for many ranks."""

import pytest
from studies import scale
from studies.model import Plan
from studies.panels import panels_of
from studies.stored import load


@pytest.mark.parametrize("cluster", scale.CLUSTERS)
@pytest.mark.parametrize(("collective", "size"), scale.CASES)
def test_every_case_is_planned(cluster: str, collective: str, size: int) -> None:
    ranks = min(scale.CLUSTERS[cluster][1])
    measured = scale.measure(cluster, ranks, collective, size)
    assert measured["seconds"] > 0 and measured["memory"] >= 0
    assert measured["steps"] > 0 and measured["algorithm"]
    assert measured["total"] > 0
    assert measured["bound"] == 0 or measured["algorithm"] != "flat"
    if collective != "broadcast" and measured["bound"]:
        assert size == 8 or measured["message"] > 0


def test_targets_have_a_case_each() -> None:
    all_cases = list(scale.cases(Plan()))
    assert len(all_cases) == len(set(all_cases))
    permitted = [scale.seconds_permitted(cluster, ranks) for cluster, ranks, _, _ in all_cases]
    for seconds in (0.005, 0.010, 0.020, 0.050, 0.100):
        assert seconds in permitted
    assert all(ranks < 1000 for _, ranks, _, _ in scale.cases(Plan(quick=True)))


def test_the_stored_result_has_all_cases() -> None:
    result = load("scale")
    for cluster, ranks, _, _ in scale.cases(Plan()):
        assert any(key.startswith(f"{cluster}, {ranks} ranks, ") for key in result.bars)
    assert len(panels_of(result)) >= 3
