"""Partitions of layers, against all partitions there are."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcomm.plan.search.division import Bottlenecks, bottlenecks, sums_of

SECONDS = st.integers(0, 9).map(float)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[float]], list[list[int]]]:
    """By stage: seconds of each layer, and how far the stage reaches from each first layer."""
    layers = draw(st.integers(1, 8))
    stages = draw(st.integers(1, layers))
    seconds = [draw(st.lists(SECONDS, min_size=layers, max_size=layers)) for _ in range(stages)]
    limits = [draw(st.integers(1, layers)) for _ in range(stages)]
    reach = [[min(first + limit, layers) for first in range(layers)] for limit in limits]
    return seconds, reach


def every_partition(
    seconds: list[list[float]], reach: list[list[int]]
) -> list[tuple[float, tuple[int, ...]]]:
    layers, stages = len(seconds[0]), len(seconds)
    found = []
    for cuts in combinations(range(1, layers), stages - 1):
        ends = (*cuts, layers)
        spans = list(zip((0, *cuts), ends, strict=True))
        if all(end <= reach[s][first] for s, (first, end) in enumerate(spans)):
            found.append((max(sum(seconds[s][a:b]) for s, (a, b) in enumerate(spans)), ends))
    return found


def tables(seconds: list[list[float]], reach: list[list[int]]) -> Bottlenecks:
    loads = []
    for each, ends in zip(seconds, reach, strict=True):
        beyond = np.arange(len(each) + 1)[None, :] > np.asarray([*ends, len(each)])[:, None]
        loads.append(np.where(beyond, np.inf, sums_of(each)))
    return bottlenecks(loads)


@given(problems())
def test_every_partition_comes_once_and_in_order(
    problem: tuple[list[list[float]], list[list[int]]],
) -> None:
    expected = every_partition(*problem)
    found = tables(*problem)
    got = list(found.partitions())
    assert sorted(got) == sorted(expected)
    assert [each[0] for each in got] == sorted(each[0] for each in expected)
    assert found.bottleneck == min((each[0] for each in expected), default=float("inf"))


def test_exact_partitions_beat_rounded_shares() -> None:
    """48 layers over speeds 197 and 160 of Holmes (arXiv 2312.03549), whose shares are 26.5 and
    21.5: 27 and 21 layers take 0.3 % less than 26 and 22."""
    found = tables([[1 / 197] * 48, [1 / 160] * 48], [[48] * 48] * 2)
    assert list(found.partitions())[:2] == [
        (pytest.approx(27 / 197), (27, 48)),
        (pytest.approx(22 / 160), (26, 48)),
    ]


@pytest.mark.parametrize("stages", [1, 2, 5, 34])
def test_equal_stages_get_equal_layers(stages: int) -> None:
    found = tables([[1.0] * 34] * stages, [[34] * 34] * stages)
    assert found.bottleneck == -(-34 // stages)


def test_more_stages_than_layers_fit_nowhere() -> None:
    found = tables([[1.0] * 2] * 3, [[2, 2]] * 3)
    assert found.bottleneck == float("inf")
    assert list(found.partitions()) == []
