"""Plans scale averages and PREMUL_SUM once, by a step of their own only if no engine scales."""

import pytest
from generated import devices, topology_of

from hetcomm import _core
from hetcomm._core import Collective, Dtype, Plan, Range, ReduceOp, Space, Spec, StepKind

REDUCING = (Collective.all_reduce, Collective.reduce, Collective.reduce_scatter)


def average(collective: Collective = Collective.all_reduce, **more: object) -> Spec:
    return Spec(collective, Dtype.float32, ReduceOp.average, count=60, **more)


def premul(collective: Collective = Collective.all_reduce, **more: object) -> Spec:
    return Spec(collective, Dtype.float32, ReduceOp.premul_sum, count=60, **{"factor": 0.5} | more)


def plans_of(topology: _core.Topology, spec: Spec) -> list[Plan]:
    plans = _core.Planner(topology).plan_all(spec)
    assert _core.check(topology, plans) == []
    return plans


def scaled(plan: Plan) -> list[int]:
    return [index for index, step in enumerate(plan.steps) if step.scaled]


@pytest.mark.parametrize("collective", REDUCING, ids=str)
def test_a_native_library_scales_and_sums_in_one_step(collective: Collective) -> None:
    topology = devices(["a/nvidia", "a/nvidia", "b/nvidia"])
    for spec in (average(collective), premul(collective)):
        for plan in plans_of(topology, spec):
            assert len(plan.steps) == 1 and plan.steps[0].scaled


def test_the_host_engine_averages_itself() -> None:
    topology = topology_of([3])
    for plan in plans_of(topology, average()):
        assert len(plan.steps) == 1 and plan.steps[0].scaled
    for plan in plans_of(topology, premul()):
        assert [step.kind for step in plan.steps] == [StepKind.reduce, StepKind.island_all_reduce]
        assert scaled(plan) == [0]


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("collective", REDUCING, ids=str)
def test_between_islands_contributions_are_multiplied_and_results_divided(
    collective: Collective, kernels: bool
) -> None:
    for topology in (
        topology_of([2, 1, 2], order="interleaved"),
        devices(["a/nvidia", "b/amd", "a/nvidia", "b/amd", "c/cpu"], kernels=kernels),
    ):
        for in_place in {False, collective != Collective.reduce_scatter}:
            for plan in plans_of(topology, premul(collective, in_place=in_place)):
                assert len(scaled(plan)) == 1
                sources = plan.steps[scaled(plan)[0]].sources
                assert sources[0].space in (
                    Space.output if in_place else Space.input, Space.staging,
                )  # fmt: skip
            for plan in plans_of(topology, average(collective, in_place=in_place)):
                wanted = collective != Collective.reduce or plan.rank == plan.spec.root
                assert len(scaled(plan)) == wanted
                assert not any(step.scaled for step in plan.steps if step.kind != StepKind.reduce)


def test_long_buffers_are_scaled_in_parts() -> None:
    topology = topology_of([1, 1])
    spec = Spec(Collective.all_reduce, op=ReduceOp.premul_sum, count=3_000_000, factor=2)
    plan = plans_of(topology, spec)[0]
    assert len(scaled(plan)) > 4
    first_send = next(step for step in plan.steps if step.kind == StepKind.send)
    assert set(scaled(plan)) - set(first_send.after)


def test_scaling_by_one_is_left_out() -> None:
    for topology, spec in (
        (topology_of([1]), average()),
        (topology_of([2, 1]), premul(factor=1)),
        (topology_of([2]), premul(factor=1)),
    ):
        assert not any(scaled(plan) for plan in plans_of(topology, spec))


def test_the_cost_model_prices_scaling() -> None:
    topology = topology_of([1, 1], bandwidth=10**12)
    costs = [
        _core.predict(topology, plans_of(topology, Spec(Collective.all_reduce, op=op, count=10**6)))
        for op in (ReduceOp.sum, ReduceOp.average)
    ]
    assert costs[1].total > costs[0].total


def test_a_scale_in_one_of_several_islands_is_rejected() -> None:
    topology = topology_of([2, 2])
    plans = _core.Planner(topology).plan_all(average())
    for plan in plans:
        steps = plan.steps
        island = next(i for i, s in enumerate(steps) if s.kind == StepKind.island_reduce_scatter)
        steps[island].scaled = True
        plan.steps = steps
    assert "is scaled: expected the only island" in _core.check(topology, plans)[0]
    alone = topology_of([2])
    plans = _core.Planner(alone).plan_all(premul(factor=1))
    for plan in plans:
        steps = plan.steps
        steps[0].scaled = True
        plan.steps = steps
    assert "is scaled: expected a native library" in _core.check(alone, plans)[0]


def test_a_scaled_sum_of_several_sources_is_rejected() -> None:
    topology = topology_of([1, 1])
    plans = _core.Planner(topology).plan_all(average())
    steps = plans[0].steps
    reduce = next(i for i, s in enumerate(steps) if s.kind == StepKind.reduce and not s.scaled)
    steps[reduce].scaled = True
    plans[0].steps = steps
    assert "is scaled: expected one source" in _core.check(topology, plans)[0]
    assert isinstance(steps[reduce].target, Range)


def test_the_factor_is_part_of_the_key() -> None:
    planner = _core.Planner(topology_of([1, 1]))
    assert planner.plan(premul(), 0).spec.factor == 0.5
    assert planner.plan(premul(factor=0.25), 0).spec.factor == 0.25
    assert premul() != premul(factor=0.25) and hash(premul()) == hash(premul())
    assert "premul_sum 0.1 float32 x 60" in repr(premul(factor=0.1))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (premul(factor=float("nan")), "finite factor"),
        (premul(factor=float("inf")), "finite factor"),
        (Spec(Collective.all_reduce, count=3, factor=2.0), "and 1 for other operations"),
        (Spec(Collective.all_reduce, Dtype.int32, ReduceOp.average, count=3), "a floating dtype"),
        (Spec(Collective.all_reduce, Dtype.boolean, ReduceOp.premul_sum, count=3), "a floating"),
    ],
)
def test_unscalable_dtypes_are_rejected(spec: Spec, text: str) -> None:
    with pytest.raises(_core.InvalidArgumentError, match=text):
        _core.Planner(topology_of([2])).plan(spec, 0)


def test_8_bit_floats_need_every_library_to_reduce_them() -> None:
    infos = devices(["a/nvidia", "a/nvidia", "b/amd", "c/cpu"]).ranks
    for info in infos:
        info.ccl = "NCCL 2.22.3 (/usr/lib/libnccl.so.2)"
    spec = Spec(Collective.all_reduce, Dtype.float8_e4m3fn, count=8)
    infos[0].float8 = True
    planner = _core.Planner(_core.Topology(infos))
    for rank in range(4):
        with pytest.raises(_core.InvalidArgumentError, match=r"rank 1 on a has NCCL 2.22.3"):
            planner.plan(spec, rank)
    assert planner.plan(Spec(Collective.all_gather, Dtype.float8_e4m3fn, count=8), 0)
    infos[1].float8 = True  # rank 2's library serves no other rank
    topology = _core.Topology(infos)
    assert _core.check(topology, _core.Planner(topology).plan_all(spec)) == []
