"""Plans with a lossy codec: the checker proves them, and rejects faults of rounded values."""

import random
import re
from collections.abc import Callable

import pytest
from generated import (
    applicable,
    describe,
    random_spec,
    random_topology,
    topology_of,
    with_devices,
)
from test_codec_plans import BATCHES, TOPOLOGIES_PER_BATCH, change, kinds, place

from hetcomm import _core
from hetcomm._core import Collective, Plan, ReduceOp, StepKind

SEED = 20261124
LOSSY = [name for name in _core.codecs() if not _core.is_lossless(name)]
LOSSY += ["int8:32:bf16", "int4:bf16", "fp8_e4m3:64:bf16", "cluster=int8,host=int4"]
SUMS = (Collective.all_reduce, Collective.reduce, Collective.reduce_scatter)
FLOATS = (_core.Dtype.float32, _core.Dtype.bfloat16, _core.Dtype.float16)

Change = Callable[[list[Plan]], None]


def lossy_spec(rng: random.Random, size: int) -> _core.Spec:
    """A random spec that a lossy codec can have."""
    collective = rng.choice((*SUMS, Collective.all_gather))
    usual = random_spec(rng, collective, size)
    codec = rng.choice(LOSSY)
    sum_like = usual.op in (ReduceOp.sum, ReduceOp.average, ReduceOp.premul_sum)
    dtypes = [_core.Dtype.float32] if codec in ("bf16", "fp16") else FLOATS
    return _core.Spec(
        collective,
        rng.choice(dtypes),
        usual.op if sum_like else ReduceOp.sum,
        root=usual.root,
        count=usual.count,
        in_place=usual.in_place,
        factor=usual.factor if usual.op == ReduceOp.premul_sum else 1,
        codec=codec,
        feedback=collective in SUMS and rng.random() < 0.5,
    )


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_plan_with_a_lossy_codec_is_proven(batch: int) -> None:
    encoded = set()
    for number in range(TOPOLOGIES_PER_BATCH):
        seed = f"{SEED}/{batch}/{number}"
        rng = random.Random(seed)
        topology = random_topology(rng, most_ranks=24)
        if number % 2:
            topology = with_devices(rng, topology)
        planner = _core.Planner(topology)
        spec = lossy_spec(rng, len(topology))
        for algorithm in applicable(spec, topology):
            if planner.why_not(algorithm, spec):
                continue
            plans = planner.plan_all(spec, algorithm.name)
            errors = _core.check(topology, plans)
            assert not errors, "\n".join(
                [f"seed {seed}, {spec} by {algorithm.name}:", *errors, describe(topology)]
            )
            if "encode" in kinds(plans):
                assert _core.predict(topology, plans).total > 0
                encoded.add((spec.collective, algorithm.name))
            own = [planner.plan(spec, rank) for rank in range(len(topology))]
            if own[0].algorithm == algorithm.name:
                assert [plan.steps for plan in own] == [plan.steps for plan in plans], seed
                assert [p.scratch_bytes for p in own] == [p.scratch_bytes for p in plans], seed
    assert {collective for collective, _ in encoded} == {*SUMS, Collective.all_gather}
    assert (Collective.all_reduce, "hierarchical_scatter") in encoded


def lossy_plans(
    sizes: list[int],
    algorithm: str = "hierarchical_direct",
    collective: Collective = Collective.all_reduce,
    **spec: object,
) -> tuple[_core.Topology, list[Plan]]:
    topology = topology_of(sizes)
    spec = {"count": 100_000, "codec": "int8"} | spec
    wanted = _core.Spec(collective, **spec)
    return topology, _core.Planner(topology).plan_all(wanted, algorithm)


def own_sum_not_rounded(plans: list[Plan]) -> None:
    """The owner adds its plain sum instead of what it sent."""
    plan, index = place(plans, StepKind.decode_reduce)
    sources = plan.steps[index].sources
    own = place([plan], StepKind.encode)[1]
    sources[0] = plan.steps[own].sources[0]
    change(plan, index, sources=sources)


def own_total_not_rounded(plans: list[Plan]) -> None:
    """The reducer keeps its plain total."""
    for plan in plans:
        for index, step in enumerate(plan.steps):
            if step.kind != StepKind.decode:
                continue
            before = plan.steps[index - 1]
            if before.kind == StepKind.encode and before.target.offset == step.sources[0].offset:
                target = step.target
                change(plan, index, kind=StepKind.copy, sources=[target])
                return
    raise AssertionError("no rank decodes its own total")


def encoded_again_for_one_receiver(plans: list[Plan]) -> None:
    """Two encodings of one sum need not have the same bits."""
    plan, index = place(plans, StepKind.encode)
    steps = plan.steps
    sends = [i for i, step in enumerate(steps) if step.kind == StepKind.send]
    read = next(i for i, step in enumerate(steps) if step.kind == StepKind.decode_reduce)
    first, last = steps[index], sends[-1]
    assert index < last < read
    for step in steps[last + 1 :]:
        step.after = [at + (at > last) for at in step.after]
    steps[read].after = [*steps[read].after, last + 1]
    second = _core.Step(StepKind.encode, sources=first.sources, target=first.target, after=sends)
    plan.steps = [*steps[: last + 1], second, *steps[last + 1 :]]


def plain_source_last(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.decode_reduce)
    sources = plan.steps[index].sources
    change(plan, index, kind=StepKind.reduce, sources=sources)


def changed_residual(plans: list[Plan], **attributes: int) -> None:
    plan, index = place(plans, StepKind.encode)
    elements, residual = plan.steps[index].sources
    for name, value in attributes.items():
        setattr(residual, name, value)
    change(plan, index, sources=[elements, residual])


def residual_shifted(plans: list[Plan]) -> None:
    changed_residual(plans, offset=256, count=place_of_count(plans) - 64)
    plan, index = place(plans, StepKind.encode)
    elements, residual = plan.steps[index].sources
    residual.count = elements.count
    change(plan, index, sources=[elements, residual])


def place_of_count(plans: list[Plan]) -> int:
    plan, index = place(plans, StepKind.encode)
    return int(plan.steps[index].sources[0].count)


def residual_too_short(plans: list[Plan]) -> None:
    changed_residual(plans, count=8)


def residual_left_out(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.encode)
    change(plan, index, sources=plan.steps[index].sources[:1])


def residual_elsewhere(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.encode)
    sources = plan.steps[index].sources
    change(plan, index, sources=[sources[0], sources[0]])


@pytest.mark.parametrize(
    ("fault", "algorithm", "text"),
    [
        (own_sum_not_rounded, "hierarchical_direct", "rounded elsewhere, than on rank 0"),
        (own_total_not_rounded, "hierarchical_scatter", "rounded elsewhere, than on rank 0"),
        (encoded_again_for_one_receiver, "hierarchical_direct", "rounded elsewhere, than on"),
        (plain_source_last, "hierarchical_direct", "expected plain elements"),
    ],
)
def test_a_fault_of_rounded_values_is_rejected(fault: Change, algorithm: str, text: str) -> None:
    topology, plans = lossy_plans([1, 1, 1], algorithm, count=96_000)
    assert _core.check(topology, plans) == []
    fault(plans)
    errors = _core.check(topology, plans)
    assert re.search(text, "\n".join(errors)), errors


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (encoded_again_for_one_receiver, "updates residual.* again; expected once"),
        (residual_shifted, "expected the residual of elements|expected a range within"),
        (residual_too_short, "expected a residual of as many elements"),
        (residual_left_out, "expected a residual; got 1 sources"),
        (residual_elsewhere, "expected a residual of as many elements as second source"),
    ],
)
def test_a_fault_of_residuals_is_rejected(fault: Change, text: str) -> None:
    topology, plans = lossy_plans([1, 1, 1], feedback=True, count=96_000)
    assert _core.check(topology, plans) == []
    fault(plans)
    errors = _core.check(topology, plans)
    assert re.search(text, "\n".join(errors)), errors


def test_a_gathered_block_is_rounded_on_its_own_rank_too() -> None:
    topology, plans = lossy_plans([1, 1], "hierarchical", Collective.all_gather, count=96_000)
    assert _core.check(topology, plans) == []
    for index, step in enumerate(plans[0].steps):
        if step.kind == StepKind.decode and step.target.offset < 4 * 96_000:
            first = step.target.offset
            exact = _core.Range(_core.Space.input, first, step.target.count)
            change(plans[0], index, kind=StepKind.copy, sources=[exact])
    assert "rounded elsewhere, than on rank 0" in "\n".join(_core.check(topology, plans))


def test_a_lossy_codec_of_a_group_is_for_sums_alone() -> None:
    topology = topology_of([2, 2])
    planner = _core.Planner(topology, codec="int8")
    for collective in Collective.__members__.values():
        if collective.name in ("send", "recv"):
            continue
        spec = _core.Spec(collective, count=0 if collective.name == "barrier" else 1 << 20)
        assert ("encode" in kinds(planner.plan_all(spec))) == (collective in SUMS), collective
    for spec in (
        _core.Spec(Collective.all_reduce, op=ReduceOp.max, count=1 << 20),
        _core.Spec(Collective.all_reduce, _core.Dtype.int32, count=1 << 20),
        _core.Spec(Collective.all_reduce, count=100),
        _core.Spec(Collective.all_reduce, count=1 << 20, codec="none"),
    ):
        assert "encode" not in kinds(planner.plan_all(spec))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"op": ReduceOp.max}, "int8 is lossy: expected an all_gather, or a sum"),
        ({"dtype": _core.Dtype.int32}, "int8 does not encode int32; leave the codec out"),
        ({"collective": Collective.broadcast}, "int8 is lossy: expected an all_gather"),
        ({"codec": "lossless", "feedback": True}, "feedback is for sums with a lossy codec"),
        ({"codec": "group", "feedback": True}, "feedback is for sums with a lossy codec"),
        (
            {"collective": Collective.all_gather, "feedback": True},
            "feedback is for sums with a lossy codec",
        ),
    ],
)
def test_a_codec_that_a_call_cannot_have_is_rejected(spec: dict[str, object], text: str) -> None:
    planner = _core.Planner(topology_of([1, 1]))
    given = {"collective": Collective.all_reduce, "codec": "int8", "count": 8} | spec
    with pytest.raises(_core.InvalidArgumentError, match=text):
        planner.plan_all(_core.Spec(**given))


def test_a_ring_would_round_at_each_hop() -> None:
    topology = topology_of([1, 1, 1, 1])
    planner = _core.Planner(topology)
    spec = _core.Spec(Collective.all_reduce, count=1 << 20, codec="int8")
    with pytest.raises(_core.InvalidArgumentError, match="would round every sum again at each hop"):
        planner.plan_all(spec, "hierarchical_ring")
    ring = [c for c in planner.choose(spec).candidates if c.algorithm.name == "hierarchical_ring"]
    assert "round" in ring[0].rejected


def test_messages_have_the_bytes_of_the_codec() -> None:
    for codec, ratio in (
        *(("int8", 3.9), ("int4", 7.7)),
        *(("int4:32", 6.3), ("int4:32:bf16", 7.05), ("int4:bf16", 7.8)),
    ):
        topology, plans = lossy_plans([2, 2], count=16 << 20, codec=codec)
        encoded = _core.predict(topology, plans).bridge_bytes
        plain = _core.predict(topology, lossy_plans([2, 2], count=16 << 20, codec="none")[1])
        assert ratio < plain.bridge_bytes / encoded < ratio + 0.15
