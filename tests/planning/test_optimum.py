"""Optima that use nothing of the search: an integer program of divisions, and plain layouts.

The integer program gives whole layers to stages, so that the latest stage ends first. A stage
begins when the first activation has come through all stages before it. It computes all
micro-batches, and its last gradient goes back through these stages. Its memory limits its layers.
"""

from collections.abc import Iterator
from itertools import accumulate, combinations, pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import cluster_of, small_model
from test_search import search_of

from hetcomm.plan.layout import Layout, Replica, Stage
from hetcomm.plan.search.fill import NEAR, Filling
from hetcomm.plan.search.nodes import Search
from hetcomm.plan.search.probes import Probes
from hetcomm.plan.search.search import predicted, search
from hetcomm.plan.search.settings import Settings
from hetcomm.plan.search.shapes import Part, Shape

SCHEDULES, INFINITE = ("1f1b", "gpipe"), float("inf")


def divisions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """All ways to give the layers to stages."""
    for ends in combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *ends, layers)))


def program(root: Search, kinds: list[str], number: int, each: Settings) -> dict[object, float]:
    """By layers of the stages, the seconds of so many micro-batches, infinite without the memory.
    Stage s is rank s, of kinds[s]."""
    problem, last = root.terms.problem, len(kinds) - 1
    model, size = problem.model, problem.model.output_bytes()
    moved = [problem.network.transfer([(s, s + 1)], size) for s in range(last)]
    state = model.weight_bytes + model.gradient_bytes + model.state_bytes

    def passes(s: int, layers: int) -> float:
        blocks = layers - (s == 0) - (s == last)
        names = ["embedding"] * (s == 0) + ["block"] * blocks + ["head"] * (s == last)
        times = {name: problem.profile.layer(model, kinds[s], name, 1, 1) for name in names}
        kept = {name: model.kept_bytes(name) for name in names}
        working = max(map(model.working_bytes, names))
        seconds = sum(times[name].forward + times[name].backward for name in names)
        if each.recompute and blocks:
            seconds += blocks * times["block"].forward
            working += kept["block"]
            kept["block"] = size
        held = min(number, last + 1 - s if each.schedule == "1f1b" else number)
        needed = state * sum(map(model.parameters, names)) + held * sum(kept[n] for n in names)
        fits = needed + working + 2 * size + 2e9 <= problem.profile.devices[kinds[s]].memory
        return seconds if fits else INFINITE

    found = {}
    for layers in divisions(model.layers, len(kinds)):
        way, latest = 0.0, 2 * sum(moved) + (number - 1) * max(moved)
        for (s, own), link in zip(enumerate(layers), [*moved, 0.0], strict=True):
            latest = max(latest, way + number * passes(s, own))
            way += passes(s, own) + 2 * link
        found[layers] = latest
    return found


@settings(deadline=None, max_examples=8)
@given(
    st.lists(st.sampled_from(["A100", "V100"]), min_size=2, max_size=5).map(sorted),
    st.integers(4, 8), st.sampled_from([4, 8, 16]), st.sampled_from([1e12, 2.25e9, 2.15e9]),
    st.sampled_from([10**9, 10**11]),
)  # fmt: skip
def test_bounds_are_an_integer_program(
    kinds: list[str], blocks: int, batch: int, memory: float, rate: int
) -> None:
    counts = {kind: kinds.count(kind) for kind in kinds}
    cluster, model = cluster_of(counts, ranks=1, rate=rate), small_model(blocks)
    root = search_of(cluster, batch, memory, schedules=SCHEDULES, model=model)
    parts = {kind: (Part(pool, 1, 1, 1),) for pool, kind in enumerate(counts)}
    shape = Shape(tuple(map(parts.get, kinds)), 1, (batch,))
    filling = Filling(root.terms, Probes(root.terms, shape), root.settings(shape))
    for index, each in enumerate(filling.options):
        expected = program(root, kinds, batch, each) if each.states == "rank" else {}
        for layers, seconds in expected.items():
            own = [layers[0] - 1, *layers[1:-1], layers[-1] - 1]
            bound = filling.of_divisions(index, own[:-2], INFINITE)[own[-2]]
            assert filling.bounds(INFINITE)[index] <= seconds * (1 + 1e-9)
            if seconds < INFINITE:
                assert bound == pytest.approx(seconds, rel=2 * NEAR)
                prediction = predicted(root.terms.problem, root.layout(shape, each, layers))
                assert not prediction.over and prediction.seconds >= seconds * (1 - 1e-9)
            elif all(own):  # the search knows the memory of stages with blocks
                assert bound == INFINITE


def plain_layouts(root: Search, ranks: dict[str, range]) -> Iterator[Layout]:
    """Each kind serves consecutive stages, or none."""
    layers, batch = root.space.layers, root.space.batch
    orders = [o for n in range(1, len(ranks) + 1) for o in permutations(ranks, n)]
    for order, micro, replicas in product(orders, (1, 2), (1, 2, 4)):
        choices = [  # ranks of each stage's replicas, by tensor degree and number of stages
            [[[own[i : i + t] for i in range(s * replicas * t, (s + 1) * replicas * t, t)]
              for s in range(number)]
             for t in (1, 2) for number in range(1, len(own) // (t * replicas) + 1)]
            for own in map(ranks.get, order)
        ]  # fmt: skip
        for chosen in product(*choices) if batch % (micro * replicas) == 0 else ():
            stages = [tuple(Replica(tuple(r)) for r in stage) for run in chosen for stage in run]
            few = batch // (micro * replicas) < len(stages)  # micro-batches for 1f1b
            for counts in divisions(layers, len(stages)):
                spans = ((span,) for span in pairwise(accumulate(counts, initial=0)))
                made = tuple(map(Stage, spans, stages))
                for schedule, recompute in product(SCHEDULES[few:], (False, True)):
                    yield Layout(made, batch, micro, schedule, recompute)


@pytest.mark.parametrize("memory", [1e12, 2.16e9])
@pytest.mark.parametrize("each", [2, 4])
def test_no_plain_layout_is_faster_than_the_best_one(each: int, memory: float) -> None:
    cluster = cluster_of({"A100": each, "V100": each}, ranks=2, rate=10**10)
    root = search_of(cluster, 4, memory, schedules=SCHEDULES, model=small_model(3))
    layouts = plain_layouts(root, {"A100": range(each), "V100": range(each, 2 * each)})
    every = (predicted(root.terms.problem, layout) for layout in layouts)
    least = min(prediction.seconds for prediction in every if not prediction.over)
    assert search(root, tolerance=0.0).best[0][0] <= least * (1 + 1e-9)
