"""Plans of ranks with device memory: proofs, prices, and pinned memory."""

import random
import re
from collections import Counter
from collections.abc import Callable

import pytest
from faults import remove
from generated import (
    COLLECTIVES,
    GBIT,
    applicable,
    describe,
    devices,
    random_spec,
    random_topology,
    topology_of,
    with_devices,
)

from hetcomm import _core
from hetcomm._core import Collective, Dtype, Memory, Plan, Range, ReduceOp, Space, Spec, Step
from hetcomm._core import StepKind as Kind

SEED = 20250117
BATCHES, TOPOLOGIES_PER_BATCH = 10, 200
MIB = 1 << 20


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_plan_with_devices_is_proven(batch: int) -> None:
    for number in range(TOPOLOGIES_PER_BATCH):
        seed = f"{SEED}/{batch}/{number}"
        rng = random.Random(seed)
        topology = with_devices(rng, random_topology(rng, most_ranks=24))
        planner = _core.Planner(topology)
        for collective in COLLECTIVES:
            spec = random_spec(rng, collective, len(topology))
            for algorithm in applicable(spec, topology):
                errors = _core.check_algorithm(planner, spec, algorithm)
                assert not errors, "\n".join(
                    [f"seed {seed}, {spec} by {algorithm.name}:", *errors, describe(topology)]
                )


@pytest.mark.parametrize("number", range(60))
def test_one_rank_derives_the_same_plan_as_all_ranks(number: int) -> None:
    rng = random.Random(f"alone/{number}")
    topology = with_devices(rng, random_topology(rng, most_ranks=16))
    spec = random_spec(rng, rng.choice(COLLECTIVES), len(topology))
    for rank, plan in enumerate(_core.Planner(topology).plan_all(spec)):
        alone = _core.Planner(topology).plan(spec, rank)
        assert alone.steps == plan.steps
        assert alone.scratch_bytes == plan.scratch_bytes
        assert alone.staging_bytes == plan.staging_bytes


def copies(plan: Plan) -> Counter[str]:
    """The elements that the plan copies, by "from -> to"."""
    found: Counter[str] = Counter()
    for step in plan.steps:
        if step.kind == Kind.copy:
            way = f"{step.sources[0].space.name} -> {step.target.space.name}"
            found[way] += step.target.count
    return found


@pytest.mark.parametrize("in_place", [False, True])
def test_each_element_is_copied_once_each_way(in_place: bool) -> None:
    """An all_reduce of a GPU with a CPU rank copies its input out, and the total in."""
    count = 12 * MIB
    topology = devices(["a/nvidia", "b/cpu"])
    spec = Spec(Collective.all_reduce, count=count, in_place=in_place)
    plans = _core.Planner(topology).plan_all(spec)
    source = "output" if in_place else "input"
    assert copies(plans[0]) == {f"{source} -> staging": count, "staging -> output": count}
    assert plans[0].scratch_bytes == 0, "what is received and used up needs no device memory"
    assert copies(plans[1]) == {} and plans[1].staging_bytes == 0


def test_a_device_with_kernels_reduces_its_values() -> None:
    topology = devices(["a/nvidia", "b/cpu"], kernels=True)
    plans = _core.Planner(topology).plan_all(Spec(Collective.all_reduce, count=4 * MIB))
    assert {
        space
        for step in plans[0].steps
        if step.kind == Kind.reduce
        for space in [step.target.space, *(each.space for each in step.sources)]
    } == {Space.input, Space.output, Space.scratch}
    small = _core.Planner(topology).plan_all(Spec(Collective.all_reduce, count=64))
    (reduce,) = [step for step in small[0].steps if step.kind == Kind.reduce]
    assert reduce.target.space == Space.staging, "the host is done before a kernel starts"


LOSSY = [name for name in _core.codecs() if not _core.is_lossless(name)]
CODED = (Kind.encode, Kind.decode, Kind.decode_reduce)


def coded_spaces(plan: Plan) -> set[Space]:
    """Where the plan encodes and decodes."""
    coded = [step for step in plan.steps if step.kind in CODED]
    return {each.space for step in coded for each in (step.target, *step.sources)}


@pytest.mark.parametrize("codec", [*LOSSY, "int4:32:bf16"])
def test_a_device_with_kernels_encodes(codec: str) -> None:
    """The other rank decodes on its host. Only encoded elements are copied."""
    count = 4 * MIB
    topology = devices(["a/nvidia", "b/cpu"], kernels=True)
    for feedback in (False, True):
        spec = Spec(Collective.all_reduce, count=count, codec=codec, feedback=feedback)
        planner = _core.Planner(topology)
        plans = planner.plan_all(spec)
        assert _core.check(topology, plans) == []
        moved = [step for step in plans[0].steps if step.kind == Kind.copy]
        on_device = {Space.input, Space.output, Space.scratch}
        assert coded_spaces(plans[0]) == on_device | ({Space.residual} if feedback else set())
        assert {step.target.codec for step in moved} == {codec}
        sent = [step.sources[0] for step in plans[0].steps if step.kind == Kind.send]
        assert sum(step.target.count for step in moved) == 2 * sum(each.count for each in sent)
        slower = _core.CostParameters()
        slower.copy_bandwidth = 100_000_000
        host = _core.Planner(devices(["a/nvidia", "b/cpu"])).plan_all(spec)
        on_host = _core.predict(devices(["a/nvidia", "b/cpu"]), host, slower)
        assert _core.predict(topology, plans, slower).staging < on_host.staging * 0.6


def test_encoded_elements_of_devices_need_no_staging_over_rdma() -> None:
    places = ["a/nvidia", "b/nvidia"]
    topology = devices(places, fabric="roce", kernels=True, direct=places, islands="xy")
    for codec in LOSSY:
        spec = Spec(Collective.all_reduce, count=4 * MIB, codec=codec)
        plans = _core.Planner(topology).plan_all(spec)
        assert _core.check(topology, plans) == []
        assert [plan.staging_bytes for plan in plans] == [0, 0]


def without_kernels(topology: _core.Topology) -> _core.Topology:
    infos = topology.ranks
    for info in infos:
        info.kernels = False
    return _core.Topology(infos)


def test_steps_of_codecs_that_a_device_cannot_perform_are_rejected() -> None:
    places = ["a/nvidia", "b/nvidia"]
    topology = devices(places, fabric="roce", kernels=True, direct=places, islands="xy")
    spec = Spec(Collective.all_reduce, count=MIB, codec="int8")
    plans = _core.Planner(topology).plan_all(spec)
    errors = "\n".join(_core.check(without_kernels(topology), plans))
    assert "encode): expected staging, for its device has no kernels" in errors
    assert "expected staging, for the host encodes or needs the length" in errors


def test_a_device_encodes_without_loss_and_the_host_sends() -> None:
    """Messages of lossless data lie in staging, where the host knows their length."""
    topology = devices(["a/nvidia", "b/cpu"], kernels=True)
    spec = Spec(Collective.all_reduce, count=4 * MIB, codec="lossless")
    plans = _core.Planner(topology).plan_all(spec)
    assert _core.check(topology, plans) == []
    assert coded_spaces(plans[0]) == {Space.input, Space.scratch}
    messages = [step for step in plans[0].steps if step.kind in (Kind.send, Kind.recv)]
    places = [step.sources[0] if step.kind == Kind.send else step.target for step in messages]
    assert {place.space for place in places if place.codec == "lossless"} == {Space.staging}
    plans = _core.Planner(without_kernels(topology)).plan_all(spec)
    assert coded_spaces(plans[0]) == {Space.staging}


def test_encoded_elements_lie_where_kernels_reach_them() -> None:
    topology = devices(["a/nvidia", "b/cpu"], kernels=True)
    spec = Spec(Collective.all_reduce, count=MIB, codec="int8")
    plans = _core.Planner(topology).plan_all(spec)
    steps = plans[0].steps
    (index, *_) = [i for i, step in enumerate(steps) if step.kind == Kind.encode]
    target = steps[index].target
    target.offset += 4
    steps[index].target = target
    plans[0].steps = steps
    errors = "\n".join(_core.check(topology, plans))
    assert "expected encoded elements at a multiple of 16 bytes" in errors


def test_a_barrier_of_lone_devices_copies_nothing() -> None:
    topology = devices(["a/nvidia", "b/cpu", "a/amd"])
    for plan in _core.Planner(topology).plan_all(Spec(Collective.barrier)):
        assert copies(plan) == {}
        assert plan.rank == 1 or plan.scratch_bytes == 0


def test_a_plan_on_host_memory_has_no_staging() -> None:
    for number in range(50):
        rng = random.Random(f"host/{number}")
        topology = random_topology(rng, most_ranks=16)
        spec = random_spec(rng, rng.choice(COLLECTIVES), len(topology))
        for plan in _core.Planner(topology).plan_all(spec):
            assert plan.staging_bytes == 0
            assert all(
                each.space != Space.staging
                for step in plan.steps
                for each in step.reads(plan.rank) + step.writes(plan.rank)
            )


@pytest.mark.parametrize("gigabytes", [0.25, 1, 4])
def test_pinned_memory_is_bounded(gigabytes: float) -> None:
    count = int(gigabytes * (1 << 30)) // 4
    bound = max(32 * MIB, 4 * count // 16)
    topology = devices(["a/nvidia", "b/cpu", "c/amd"])
    for collective in (Collective.all_reduce, Collective.broadcast, Collective.reduce):
        for plan in _core.Planner(topology).plan_all(Spec(collective, count=count)):
            assert plan.staging_bytes <= bound + MIB, (collective, plan.rank)
    message = _core.message_plan(topology, 0, Collective.send, 1, Dtype.float32, count)
    assert message.staging_bytes <= max(32 * MIB, 4 * count // 32)


def test_pinned_memory_does_not_grow_with_many_sizes() -> None:
    """An all_to_all of ever larger blocks: a block of staging also serves smaller blocks."""
    size = 24
    topology = devices(["g/nvidia"] + [f"h{i}/cpu" for i in range(size - 1)])
    splits = [(row * size + column) * 700 for row in range(size) for column in range(size)]
    plan = _core.Planner(topology).plan(Spec(Collective.all_to_all, splits=splits), 0)
    assert plan.staging_bytes <= 64 * MIB


# Messages


def message_plans(topology: _core.Topology, count: int) -> list[Plan]:
    """A message from rank 0 to rank 1 as a broadcast, so that it can be checked and priced."""
    spec = Spec(Collective.broadcast, Dtype.float32, count=count)
    plans = [
        _core.message_plan(topology, 0, Collective.send, 1, Dtype.float32, count),
        _core.message_plan(topology, 1, Collective.recv, 0, Dtype.float32, count),
    ]
    for plan in plans:
        plan.spec = spec
    own = Step(
        Kind.copy, sources=[Range(Space.input, 0, count)], target=Range(Space.output, 0, count)
    )
    plans[0].steps = [*plans[0].steps, own] if count else plans[0].steps
    return plans


@pytest.mark.parametrize(
    "places",
    ["a/cpu b/cpu", "a/nvidia b/cpu", "a/cpu b/nvidia", "a/nvidia b/amd", "a/nvidia a/amd"],
)
@pytest.mark.parametrize("count", [0, 1, 1000, 3 * MIB + 17, 100 * MIB])
def test_messages_are_proven(places: str, count: int) -> None:
    topology = devices(places.split())
    plans = message_plans(topology, count)
    assert _core.check(topology, plans) == []
    sends = [step for step in plans[0].steps if step.kind == Kind.send]
    assert [step.tag for step in sends] == list(range(len(sends)))
    if "nvidia" not in places:
        assert len(sends) == 1 and sends[0].sources == [Range(Space.input, 0, count)]


@pytest.mark.parametrize("places", ["a/nvidia b/cpu", "a/cpu b/nvidia", "a/nvidia b/amd"])
@pytest.mark.parametrize("megabytes", [32, 256, 1024])
def test_copies_overlap_the_wire(places: str, megabytes: int) -> None:
    """With copy engines as fast as the wire, a message takes little longer than one of them."""
    rate = 10 * GBIT
    topology = devices(places.split(), bandwidth=rate)
    parameters = _core.CostParameters()
    parameters.copy_bandwidth = rate
    count = megabytes * MIB // 4
    slower = 4 * count * 1_000_000_000 // rate
    cost = _core.predict(topology, message_plans(topology, count), parameters)
    assert slower <= cost.total <= 1.15 * slower
    plans = _core.Planner(topology).plan_all(Spec(Collective.broadcast, count=count))
    assert slower <= _core.predict(topology, plans, parameters).total <= 1.15 * slower


def test_copy_engines_are_a_resource_for_each_direction() -> None:
    rate = 10 * GBIT
    topology = devices(["a/nvidia", "b/cpu"], bandwidth=100 * rate)
    parameters = _core.CostParameters()
    parameters.copy_bandwidth = rate
    plans = _core.Planner(topology).plan_all(Spec(Collective.all_reduce, count=64 * MIB))
    cost = _core.predict(topology, plans, parameters)
    one_way = 256 * MIB * 1_000_000_000 // rate
    assert one_way <= cost.staging <= 1.01 * one_way
    assert cost.total < 1.6 * one_way, "both directions at once"


# Faults


def staged_plans(rng: random.Random) -> tuple[_core.Topology, list[Plan]]:
    topology = devices(["a/nvidia", "b/cpu", "a/nvidia", "c/amd"], kernels=rng.random() < 0.5)
    collective = rng.choice(
        (Collective.all_reduce, Collective.all_gather, Collective.broadcast, Collective.all_to_all)
    )
    spec = Spec(collective, count=rng.randint(1, 2 * MIB))
    return topology, _core.Planner(topology).plan_all(spec)


def find(plans: list[Plan], wanted: Callable[[Step], bool]) -> tuple[Plan, int] | None:
    for plan in plans:
        for index, step in enumerate(plan.steps):
            if wanted(step):
                return plan, index
    return None


def missing_home_update(plans: list[Plan]) -> bool:
    found = find(plans, lambda s: s.kind == Kind.copy and s.sources[0].space == Space.staging)
    if found:
        remove(*found)
    return found is not None


def stale_staging_read(plans: list[Plan]) -> bool:
    found = find(plans, lambda s: s.kind == Kind.copy and s.target.space == Space.staging)
    if found:
        remove(*found)
    return found is not None


def send_from_home(plans: list[Plan]) -> bool:
    found = find(plans, lambda s: s.kind == Kind.send and s.sources[0].space == Space.staging)
    if found is None:
        return False
    plan, index = found
    steps = plan.steps
    copied = next(s for s in steps if s.kind == Kind.copy and s.target == steps[index].sources[0])
    steps[index].sources = copied.sources
    plan.steps = steps
    return True


def reduce_between_memories(plans: list[Plan]) -> bool:
    found = find(plans, lambda s: s.kind == Kind.reduce and s.target.space == Space.staging)
    if found is None:
        return False
    plan, index = found
    steps = plan.steps
    target = steps[index].target
    steps[index].target = Range(Space.output, 0, target.count, target.dtype)
    plan.steps = steps
    return True


def staging_on_a_host(plans: list[Plan]) -> bool:
    plans[1].staging_bytes = 64
    return True


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (missing_home_update, "expected"),
        (stale_staging_read, "reads staging|expected"),
        (send_from_home, "expected staging, for this message is not direct; got send"),
        (reduce_between_memories, "expected all of them in device memory or all in staging"),
        (staging_on_a_host, "expected no staging on a rank with host memory; got 64 bytes"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_staging_fault_is_rejected(fault: Callable[[list[Plan]], bool], message: str) -> None:
    planted = 0
    for number in range(60):
        topology, plans = staged_plans(random.Random(f"{fault.__name__}/{number}"))
        assert _core.check(topology, plans) == []
        if not fault(plans):
            continue
        planted += 1
        errors = _core.check(topology, plans)
        assert errors and re.search(message, "\n".join(errors)), (plans[0].spec, errors)
    assert planted >= 5


def test_island_steps_in_staging_are_rejected() -> None:
    topology = devices(["a/nvidia", "a/nvidia"])
    plans = _core.Planner(topology).plan_all(Spec(Collective.all_reduce, count=8))
    assert _core.check(topology, plans) == []
    for plan in plans:
        steps = plan.steps
        pieces = steps[0].pieces
        pieces[0].source = Range(Space.staging, 0, 8)
        steps[0].pieces = pieces
        plan.steps = steps
        plan.staging_bytes = 32
    assert "expected the device's own memory in island steps" in _core.check(topology, plans)[0]


# Reductions that native libraries lack


def test_an_unsupported_reduction_is_rejected_on_all_ranks() -> None:
    lacking = Spec(Collective.all_reduce, Dtype.int16, ReduceOp.sum, count=8)
    planner = _core.Planner(devices(["a/nvidia", "b/cpu", "a/nvidia"]))
    for rank in range(3):
        with pytest.raises(
            _core.InvalidArgumentError, match=r"ranks 0 and 2 has no sum of int16; use another"
        ):
            planner.plan(lacking, rank)
    lone = devices(["a/nvidia", "b/cpu", "c/amd"])  # without a native library
    assert _core.check(lone, _core.Planner(lone).plan_all(lacking)) == []
    assert _core.Planner(topology_of([2, 2])).plan_all(lacking)
    assert all(info.memory == Memory.host for info in topology_of([2, 2]).ranks)
