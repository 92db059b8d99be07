"""Predictions of a step: closed forms, unlike devices, what adds up, and traces."""

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import MODEL, layout, network, profile

import hetcomm
from hetcomm.explain import islands_of, topology_of
from hetcomm.plan import Layout, PlannedNetwork, Prediction, Replica, Runtime, Stage, predict
from hetcomm.plan.prediction.synchronize import waves
from hetcomm.plan.profile import HostWork

QUIET = Runtime(overlap_gradients=False)
STEP = 1e-9  # seconds of the optimizer for each parameter


def of(plan: Layout, devices: list[str] | None = None, runtime: Runtime = QUIET) -> Prediction:
    kinds = devices or ["fast"] * len(plan.ranks)
    return predict(MODEL, plan, profile(), network(len(kinds), kinds), kinds, runtime)


def test_one_rank_takes_the_sum_of_the_layers() -> None:
    seconds = 8 * (0.2 + 4 * 3.0 + 1.5) + STEP * MODEL.total
    found = of(layout((6,)))
    assert found.seconds == pytest.approx(seconds, rel=1e-6)
    assert found.tflops == pytest.approx(MODEL.step_operations(8) / seconds * 1e-12)
    assert found.error == 0


def test_each_pass_and_each_end_of_a_message_takes_the_hosts_work() -> None:
    work = HostWork(each_pass=0.01, message=0.001, byte=1e-9)
    mine = replace(profile(), host_work={"fast": work})

    def of_work(plan: Layout) -> Prediction:
        kinds = ["fast"] * len(plan.ranks)
        return predict(MODEL, plan, mine, network(len(kinds)), kinds, QUIET)

    alone, plain = of_work(layout((6,))), of(layout((6,)))
    assert alone.seconds - plain.seconds == pytest.approx(8 * 2 * 0.01)
    plan = layout((3, 3), batch=1)
    message = 0.001 + 1e-9 * MODEL.output_bytes()
    # Forward and backward of both stages, and two ends of an activation and of a gradient.
    assert of_work(plan).seconds - of(plan).seconds == pytest.approx(4 * 0.01 + 4 * message)
    halves = replace(plan, schedule="zero_bubble")
    assert of_work(halves).parts[0, 0]["weights"] - of(halves).parts[0, 0][
        "weights"
    ] == pytest.approx(0.01)


def test_recompute_goes_forward_twice_and_counts_once() -> None:
    plain, again = of(layout((6,))), of(layout((6,), recompute=True))
    assert again.seconds - plain.seconds == pytest.approx(8 * 4 * 1.0)
    assert again.tflops * again.seconds == pytest.approx(plain.tflops * plain.seconds)


def test_replicas_reduce_after_the_passes() -> None:
    found = of(layout((6,), replicas=2, batch=16))
    reduction = 2 * MODEL.total * 4 / 2 / 1e9
    alone = of(layout((6,))).seconds
    assert found.seconds == pytest.approx(alone + reduction, rel=1e-6)
    assert found.parts[0, 0]["gradients"] == pytest.approx(reduction, rel=1e-6)


def test_overlapped_gradients_cost_less_and_at_least_a_layer() -> None:
    after = of(layout((6,), replicas=2, batch=16))
    beside = of(layout((6,), replicas=2, batch=16, overlap_optimizer=True))
    hidden = after.parts[0, 0]["gradients"] / 6
    assert beside.parts[0, 0]["gradients"] == pytest.approx(hidden)


def test_the_slowest_replica_sets_the_pace() -> None:
    plan = layout((6,), replicas=2, batch=16)
    mixed = of(plan, ["fast", "slow"])
    slow = of(plan, ["slow", "slow"])
    assert mixed.seconds == pytest.approx(slow.seconds, rel=1e-6)
    assert mixed.parts[0, 0]["barrier"] == pytest.approx(8 * (0.2 + 12.0 + 1.5))
    assert mixed.parts[0, 1]["barrier"] == pytest.approx(0)


def test_a_fast_replica_with_a_larger_share_does_not_wait() -> None:
    plan = layout((6,), replicas=2, batch=24, shares=(16, 8))
    found = of(plan, ["fast", "slow"])
    assert found.parts[0, 0]["forward"] == pytest.approx(16 * (0.1 + 4 * 1.0 + 0.5))
    assert [found.parts[0, r]["barrier"] for r in range(2)] == pytest.approx([0, 0])
    equal = of(replace(plan, shares=()), ["fast", "slow"])
    assert equal.parts[0, 0]["barrier"] == pytest.approx(12 * (0.2 + 12.0 + 1.5))
    assert equal.seconds - found.seconds == pytest.approx(8 * (0.2 + 12.0 + 1.5))
    assert of(replace(plan, shares=(12, 12)), ["fast", "slow"]).seconds == equal.seconds


def test_partitioned_states_are_reduced_inside_and_across_and_gathered() -> None:
    plan = layout((6,), replicas=4, batch=32, optimizer_states="host")
    places = network(4, per_host=2)
    found = predict(MODEL, plan, profile(), places, ["fast"] * 4, QUIET)
    size = MODEL.total * 4
    inside = size / 2 / 100e9  # a reduce_scatter, and an all_gather
    across = 2 * (size / 2) / 2 / 1e9 * 2  # two groups share the hosts' NICs
    assert found.parts[0, 0]["gradients"] == pytest.approx(2 * inside + across, rel=1e-4)
    assert found.parts[0, 0]["optimizer"] == pytest.approx(STEP * MODEL.total / 2)


def test_tied_embeddings_are_reduced_between_first_and_last_stage() -> None:
    tied = replace(MODEL, tied=True)
    plan, places = layout((3, 3)), network(2)
    found = predict(tied, plan, profile(), places, ["fast"] * 2, QUIET)
    table = MODEL.vocabulary * MODEL.hidden * 4
    assert found.parts[0, 0]["gradients"] == pytest.approx(table / 1e9, rel=1e-5)


def test_unlike_tensor_degrees_take_turns() -> None:
    """Two tensor ranks of stage 0 send to one rank of stage 1, one after the other."""
    stages = (Stage(((0, 3),), (Replica((0, 1)),)), Stage(((3, 6),), (Replica((2,)),)))
    plan = Layout(stages, batch=1, micro_batch=1)
    size = MODEL.output_bytes()

    def transfer(**rest: object) -> float:
        runtime = replace(QUIET, parts=True, **rest)  # type: ignore[arg-type]
        kinds = ["fast"] * 3
        places = network(3, per_host=1)
        places.places = [replace(places.places[0])] * 2 + [places.places[2]]
        found = predict(MODEL, plan, profile(), places, kinds, runtime)
        return found.waits(1)["activation"] - found.timelines[0].spans[0][0].end

    assert transfer() == pytest.approx(2 * size / 2 / 1e9)
    assert transfer(whole_parts=True) == pytest.approx(2 * size / 2 / 1e9)
    assert transfer(messages=2) == pytest.approx(2 * (size / 2 + 8) / 1e9, rel=1e-6)


def test_a_pipelines_widest_stage_cuts_all_its_transfers_in_whole_parts() -> None:
    stages = tuple(
        Stage(((2 * i, 2 * i + 2),), (Replica(ranks),))
        for i, ranks in enumerate([(0,), (1,), (2, 3)])
    )
    plan = Layout(stages, batch=1, micro_batch=1)
    size = MODEL.output_bytes()

    def transfer(whole: bool) -> float:
        runtime = replace(QUIET, parts=True, whole_parts=whole)
        found = predict(MODEL, plan, profile(), network(4), ["fast"] * 4, runtime)
        return found.waits(1)["activation"] - found.timelines[0].spans[0][0].end

    assert transfer(False) == pytest.approx(size / 1e9)
    assert transfer(True) == pytest.approx(2 * size / 1e9)  # the whole part, for each of two lanes


def test_a_rank_serves_its_groups_one_after_another() -> None:
    """A replica without tensor parallelism sums both halves of the gradients with the other one."""
    stage = Stage(((0, 6),), (Replica((0,)), Replica((1, 2))))
    found = of(Layout((stage,), batch=8, micro_batch=1))
    from_two = found.parts[0, 0]["gradients"]
    halves = MODEL.parameters("block", 2) * 4 + MODEL.parameters("embedding", 2)
    halves += MODEL.parameters("head", 2)
    assert from_two == pytest.approx(2 * (2 * halves * 4 / 2 / 1e9), rel=1e-6)


def test_groups_with_a_common_rank_are_in_unlike_waves() -> None:
    assert waves([[0, 1], [0, 2], [3, 4], [5]]) == [[[0, 1], [3, 4]], [[0, 2]]]


def test_with_a_barrier_all_stages_wait_before_the_reduction() -> None:
    plan = layout((1, 5), replicas=2, batch=16)
    for barrier in (False, True):
        found = of(plan, runtime=replace(QUIET, barrier=barrier))
        ends = found.timelines[0].ends
        assert ends[1] < ends[0]
        wait = ends[0] - ends[1] if barrier else 0.0
        assert found.parts[1, 0]["barrier"] == pytest.approx(wait)


def test_a_flat_copy_of_gradients_is_filled_scaled_and_copied_back() -> None:
    plan = layout((6,), replicas=2, batch=16)
    plain, flat = of(plan), of(plan, runtime=replace(QUIET, flat_gradients=True))
    passes = 6 * MODEL.total * 4 / 1e12
    assert flat.seconds - plain.seconds == pytest.approx(passes, rel=1e-3)


def test_partitioned_weights_come_beside_passes_or_before_them() -> None:
    plan = layout((6,), replicas=2, batch=16, weights="cluster", optimizer_states="cluster")
    gather = MODEL.total * 4 / 2 / 1e9
    alone = of(layout((6,)))
    passes = alone.timelines[0].ends[0]
    assert of(plan).timelines[0].ends[0] == pytest.approx(passes)
    before = of(plan, runtime=replace(QUIET, gather_beside=False)).timelines[0].ends[0]
    assert before - passes == pytest.approx(8 * 2 * gather, rel=1e-4)


def test_updated_weights_are_gathered_up_to_their_level() -> None:
    """Two hosts of two ranks; states over all, weights over none, a host, or all."""
    size, places = MODEL.total * 4, network(4, per_host=2)
    reduced = 3 * (size / 4) / 1e9  # a ring over four ranks
    for weights, gathered in (
        ("rank", reduced),
        ("host", 2 * (size / 2 / 2) / 1e9),  # two pairs share the hosts' NICs
        ("cluster", 0.0),
    ):
        plan = layout((6,), replicas=4, batch=32, weights=weights, optimizer_states="cluster")
        found = predict(MODEL, plan, profile(), places, ["fast"] * 4, QUIET)
        assert found.parts[0, 0]["gradients"] == pytest.approx(reduced + gathered, rel=1e-4)


def test_a_tensor_group_over_hosts_pays_for_its_collectives() -> None:
    plan = layout((6,), tensor=2, batch=1)
    apart = predict(MODEL, plan, profile(), network(2), ["fast"] * 2, QUIET)
    together = predict(MODEL, plan, profile(), network(2, per_host=2), ["fast"] * 2, QUIET)
    reduced = 2 * MODEL.output_bytes() / 2 / 1e9
    assert apart.seconds - together.seconds == pytest.approx(4 * 4 * reduced, rel=1e-4)


def test_a_tensor_group_scaled_from_one_rank_pays_inside_a_host_too() -> None:
    plan, inside = layout((6,), tensor=2, batch=1), network(2, per_host=2)
    alone = replace(profile(), rows=tuple(row for row in profile().rows if row.tensor == 1))
    scaled, measured = (
        predict(MODEL, plan, each, inside, ["fast"] * 2, QUIET) for each in (alone, profile())
    )
    reduced = inside.collective("all_reduce", [(0, 1)], MODEL.output_bytes())
    assert scaled.seconds - measured.seconds == pytest.approx(4 * 4 * reduced, rel=1e-4)


def test_context_ranks_share_the_sequence() -> None:
    plan = Layout((Stage(((0, 6),), (Replica((0, 1), context=2),)),), batch=1, micro_batch=1)
    found = predict(MODEL, plan, profile(), network(2, per_host=2), ["fast"] * 2, QUIET)
    gathered = 2 * MODEL.output_bytes() / 2 / 100e9
    passes = (0.2 + 12.0 + 1.5) / 2 + 4 * 3 * gathered
    assert found.timelines[0].ends[0] == pytest.approx(passes, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(6,), (3, 3), (1, 4, 1), (2, 2, 1, 1)]),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.sampled_from(["gpipe", "1f1b", "zero_bubble"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_parts_add_up_to_the_step(
    cuts: tuple[int, ...], replicas: int, tensor: int, schedule: str, blocking: bool,
    barrier: bool, draw: st.DataObject,
) -> None:  # fmt: skip
    plan = layout(cuts, replicas, tensor, batch=4 * replicas, schedule=schedule)
    count = len(plan.ranks)
    one = st.sampled_from(["fast", "slow"])
    kinds = draw.draw(st.lists(one, min_size=count, max_size=count))
    runtime = replace(QUIET, blocking=blocking, barrier=barrier, parts=True)
    found = of(plan, kinds, runtime)
    for parts in found.parts.values():
        assert sum(parts.values()) == pytest.approx(found.seconds)
        assert all(seconds >= -1e-9 for seconds in parts.values())
    fast = of(plan, ["fast"] * count, runtime)
    slow = of(plan, ["slow"] * count, runtime)
    assert fast.seconds - 1e-9 <= found.seconds <= slow.seconds + 1e-9


def test_ranks_without_enough_memory_are_named() -> None:
    kinds = ["fast", "slow"]
    mine = profile()
    need = of(layout((3, 3)), kinds).memory[1].total
    mine.devices = {kind: replace(each, memory=1e12) for kind, each in mine.devices.items()}
    for memory, over in ((need + 1, []), (need - 1, [1])):
        mine.devices["slow"] = replace(mine.devices["slow"], memory=memory)
        found = predict(MODEL, layout((3, 3)), mine, network(2, kinds), kinds, QUIET)
        assert found.over == over


def test_the_trace_shows_every_span() -> None:
    found = of(layout((3, 3), replicas=2, batch=16))
    events = json.loads(found.trace())["traceEvents"]
    passes = [event for event in events if event["cat"] in ("forward", "backward")]
    assert len(passes) == 2 * 2 * 2 * 8
    assert {(event["pid"], event["tid"]) for event in events} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    last = max(event["ts"] + event["dur"] for event in events)
    assert last == pytest.approx(found.seconds * 1e6)


def test_a_layout_of_hundreds_of_ranks_takes_milliseconds() -> None:
    plan = layout((1, 1, 1, 1, 1, 1), replicas=32, tensor=2, batch=32 * 16)
    places, mine = network(384, per_host=2), profile()
    kinds = ["fast"] * 384
    predict(MODEL, plan, mine, places, kinds)
    start = time.process_time()
    for _ in range(5):
        predict(MODEL, plan, mine, places, kinds)
    assert (time.process_time() - start) / 5 < 0.1  # about 0.01 on a machine without other work


def test_hetcomms_own_plans_predict_a_step() -> None:
    topology = topology_of(islands_of("2+2", "1gbit", "block"))

    def reduction(codec: str) -> float:
        plan = layout((6,), replicas=4, batch=32, codec=codec)
        found = predict(MODEL, plan, profile(), PlannedNetwork(topology), ["fast"] * 4, QUIET)
        return found.parts[0, 0]["gradients"]

    assert reduction("none") >= MODEL.total * 4 / 125e6
    assert reduction("auto") <= reduction("none")


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match="the model's 6 layers, got 7"):
        of(layout((3, 4)))
    with pytest.raises(hetcomm.InvalidArgumentError, match="a kind for each rank up to 1, got 1"):
        predict(MODEL, layout((3, 3)), profile(), network(2), ["fast"])
    for small in (network(1), PlannedNetwork(topology_of(islands_of("1", "1gbit", "block")))):
        with pytest.raises(hetcomm.InvalidArgumentError, match="ranks up to 1, got 1 ranks"):
            predict(MODEL, layout((3, 3)), profile(), small, ["fast"] * 2)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"tensor degree: .* a divisor of 4"):
        of(layout((6,), tensor=8))
    with pytest.raises(hetcomm.InvalidArgumentError, match="measure it with hetcomm profile"):
        of(layout((6,)), ["other"])
