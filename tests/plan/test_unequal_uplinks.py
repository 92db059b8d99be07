"""An all_reduce between islands of unlike uplinks takes about the time that its bytes need."""

import random

import pytest
from generated import GBIT, topology_of

from hetcomm._core import Collective, Planner, Space, Spec, Topology

RATIO = 10  # of the fastest and the slowest uplink


def random_uplinks(rng: random.Random) -> tuple[Topology, list[float]]:
    base, size = rng.choice((1, 10)), rng.choice((1, 2, 4))
    rates = [base * GBIT * RATIO ** -rng.random() for _ in range(rng.randint(3, 8))]
    return topology_of([size] * len(rates), [int(rate) for rate in rates]), rates


def bound(rates: list[float], size: int) -> float:
    """Seconds: every island sends its sum once, and all together send 2 (k-1) times the buffer."""
    return max(size / min(rates), 2 * (len(rates) - 1) * size / sum(rates))


@pytest.mark.parametrize(("mebibytes", "usual", "worst"), [(4, 1.07, 1.15), (64, 1.02, 1.09)])
def test_uplinks_are_busy_all_the_time(mebibytes: int, usual: float, worst: float) -> None:
    rng = random.Random(41)
    ratios = []
    for _ in range(200):
        topology, rates = random_uplinks(rng)
        spec = Spec(Collective.all_reduce, count=(mebibytes << 20) // 4)
        choice = Planner(topology).choose(spec)
        (cost,) = (c.cost for c in choice.candidates if c.algorithm.name == choice.algorithm.name)
        ratios.append(cost.total / 1e9 / bound(rates, mebibytes << 20))
    ratios.sort()
    assert ratios[0] > 0.99
    assert ratios[150] < usual
    assert ratios[-1] < worst


def test_one_slow_uplink_of_k_costs_little() -> None:
    """With half of the others' rate it costs k / (k-1) of equal uplinks, not 2."""
    for k in (3, 5, 8):
        rates = [GBIT] * (k - 1) + [GBIT // 2]
        equal, size = [GBIT] * k, 64 << 20
        spec = Spec(Collective.all_reduce, count=size // 4)
        times = [Planner(topology_of([1] * k, each)).cost(spec).total for each in (rates, equal)]
        assert times[0] / times[1] < 1.03 * k / (k - 1)


@pytest.mark.parametrize(
    ("megabits", "largest"), [(100, 64 << 10), (500, 256 << 10), (1000, 512 << 10)]
)
def test_chunks_are_short_on_slow_uplinks(megabits: int, largest: int) -> None:
    """A slow uplink is busy with a chunk for 4 ms, because nothing overlaps the first chunk."""
    topology = topology_of([1, 1], [megabits * 125_000, GBIT])
    spec = Spec(Collective.all_reduce, count=(2 << 20) // 4)
    (plan, _) = Planner(topology).plan_all(spec, "hierarchical_direct")
    sizes = [
        step.sources[0].bytes
        for step in plan.steps
        if step.kind.name == "send" and step.sources[0].space == Space.input
    ]
    assert sum(sizes) == 2 << 20
    assert 0.9 * largest <= sorted(sizes)[len(sizes) // 2] <= 1.1 * largest
