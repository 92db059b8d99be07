"""Predictions of hetcomm's own runtime: sums, the optimizer and new weights after the passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_inputs import DEVICES, cluster_of, profile_of, small_model
from planned import MODEL, layout, network, profile

from hetcomm.plan import Curve, Curves, Layout, Prediction, Replica, Stage, predict
from hetcomm.plan.prediction.runtime import HETCOMM
from hetcomm.plan.search.propose import Limits, propose

QUIET = replace(HETCOMM, clips=False)
DIVIDED = {"gradients": "cluster", "optimizer_states": "cluster"}
BACKWARD = {"embedding": 0.1, "block": 2.0, "head": 1.0}  # of planned.SECONDS
FORWARD = {"embedding": 0.1, "block": 1.0, "head": 0.5}


def slow(places: Curves, rate: float) -> Curves:
    """The network with so many bytes per second between hosts."""
    curve = Curve(1, 0, 0, rate * 1e-9, rate * 1e-9, least=1)
    return replace(places, between={key: [curve] for key in places.between})


def of(plan: Layout, places: Curves | None = None, kinds: list[str] | None = None) -> Prediction:
    kinds = kinds or ["fast"] * len(plan.ranks)
    places = places or network(len(kinds), kinds)
    return predict(MODEL, plan, profile(), places, kinds, QUIET)


def wire(kind: str, rate: float = 1e9) -> float:
    """Seconds of a reduce_scatter or an all_gather of a layer by two ranks."""
    return MODEL.parameters(kind) * 4 / 2 / rate


def test_whole_states_are_summed_after_the_passes() -> None:
    found = of(layout((6,), replicas=2, batch=16, overlap_optimizer=True))
    whole = 2 * MODEL.total * 4 / 2 / 1e9
    assert found.parts[0, 0]["gradients"] == pytest.approx(whole, rel=1e-6)
    assert found.parts[0, 0]["updates"] == 0


def test_short_sums_leave_those_of_the_first_layer() -> None:
    parts = of(layout((6,), replicas=2, batch=16, overlap_optimizer=True, **DIVIDED)).parts[0, 0]
    assert parts["gradients"] == pytest.approx(wire("embedding"), rel=1e-6)
    assert parts["updates"] == pytest.approx(wire("embedding"), rel=1e-6)


def test_gradients_of_a_narrow_level_are_left_for_the_optimizer() -> None:
    plan = layout((6,), replicas=2, batch=16, gradients="rank", optimizer_states="cluster")
    parts = of(plan).parts[0, 0]
    assert parts["gradients"] == pytest.approx(MODEL.total * 4 / 2 / 1e9, rel=1e-6)


def test_without_overlap_all_new_weights_delay_the_next_step() -> None:
    parts = of(layout((6,), replicas=2, batch=16, **DIVIDED)).parts[0, 0]
    every = wire("embedding") + 4 * wire("block") + wire("head")
    assert parts["updates"] == pytest.approx(every, rel=1e-4)


def test_long_sums_leave_what_exceeds_the_passes() -> None:
    rate = 2e4  # a block's sum takes longer than its passes
    places = slow(network(2), rate)
    plan = layout((6,), replicas=2, batch=2, overlap_optimizer=True, **DIVIDED)
    parts = of(plan, places).parts[0, 0]
    assert wire("block", rate) > BACKWARD["block"]
    every = wire("embedding", rate) + 4 * wire("block", rate) + wire("head", rate)
    hidden = 4 * BACKWARD["block"] + BACKWARD["embedding"]  # all but the head's pass
    assert parts["gradients"] == pytest.approx(every - hidden, rel=1e-3)
    waits = every - 4 * FORWARD["block"] - FORWARD["embedding"]
    assert parts["updates"] == pytest.approx(waits, rel=1e-3)


def test_stages_on_one_host_share_its_nics() -> None:
    def seconds(per_host: int) -> float:
        stages = tuple(
            Stage(((3 * s, 3 * s + 3),), (Replica((s,)), Replica((s + 2,)))) for s in range(2)
        )
        plan = Layout(stages, batch=16, micro_batch=1, optimizer_states="rank")
        places = slow(network(4, per_host=per_host), 1e6)
        return of(plan, places).parts[0, 0]["gradients"]

    alone, shared = seconds(1), seconds(2)
    sums = [2 * MODEL.parameters(kind) * 4 / 2 / 1e6 for kind in ("embedding", "block", "head")]
    own = sums[0] + 2 * sums[1]
    assert alone == pytest.approx(own, rel=1e-6)
    # The second stage ends first, so its sum is on the wire before.
    assert own < shared < 2.2 * own


def test_a_replica_with_fewer_micro_batches_ends_together_with_the_others() -> None:
    """Its backward pass waits for the sum of the head, which the fast replica has last."""
    plan = layout((6,), replicas=2, batch=4, overlap_optimizer=True, shares=(3, 1), **DIVIDED)
    places = slow(network(2, ["fast", "slow"]), 1e15)
    found = of(plan, places, ["fast", "slow"])
    fast = 3 * (0.1 + 4.0 + 0.5) + 2 * (0.1 + 8.0 + 1.0) + 1.0  # until the head's last pass
    rest = 2 * (3 * BACKWARD["block"] + BACKWARD["embedding"])  # of the slow one
    assert found.seconds == pytest.approx(fast + rest, rel=1e-3)


def test_the_norm_joins_all_stages() -> None:
    plan = layout((3, 3), replicas=2, batch=16)
    kinds = ["fast"] * 4
    quiet, clipped = (
        predict(MODEL, plan, profile(), slow(network(4), 1e6), kinds, runtime)
        for runtime in (QUIET, HETCOMM)
    )
    assert clipped.seconds > quiet.seconds
    ends = {
        sum(found[what] for what in found if what not in ("optimizer", "updates", "end"))
        for found in clipped.parts.values()
    }
    assert max(ends) == pytest.approx(min(ends))


def test_the_parts_of_a_step_add_up_to_its_seconds() -> None:
    plan = layout((2, 4), replicas=2, batch=16, overlap_optimizer=True, **DIVIDED)
    found = of(plan, slow(network(4), 1e6))
    for parts in found.parts.values():
        assert sum(parts.values()) == pytest.approx(found.seconds)
        assert min(parts.values()) >= -1e-9


def test_the_search_gives_fast_replicas_more_micro_batches() -> None:
    cluster = cluster_of({"A100": 2, "V100": 2}, ranks=2, rate=10**11)
    model = small_model(blocks=1)
    measured = profile_of(model, DEVICES, tensors=(1,), micro_batches=(1,))
    limits = Limits(micro_batches=(1,), schedules=("1f1b",), every_rank=True, tolerance=0.0)
    found = propose(cluster, model, measured, 2800, limits)
    fast, *_, last = found.best.layout.micro_batches
    assert len(found.best.layout.stages) == 1 and fast > last
    assert sum(found.best.layout.micro_batches) == 2800
    equal = [each for each in found.layouts if not each.layout.shares]
    assert all(each.prediction.seconds >= found.best.prediction.seconds for each in equal)
