"""Plans of ranks whose device memory is sent directly, beside ranks that stage or have host
memory."""

import random
from collections.abc import Callable

import pytest
from generated import COLLECTIVES, GBIT, applicable, describe, devices, random_spec

from hetcomm import _core
from hetcomm._core import Collective, Dtype, Plan, Space, Spec
from hetcomm._core import StepKind as Kind

MIB = 1 << 20


def staging_copies(plan: Plan) -> int:
    return sum(
        Space.staging in (step.sources[0].space, step.target.space)
        for step in plan.steps
        if step.kind == Kind.copy
    )


def ends(plan: Plan, peer: int) -> set[Space]:
    """The buffers from and into which messages with a peer go."""
    return {
        step.sources[0].space if step.kind == Kind.send else step.target.space
        for step in plan.steps
        if step.kind in (Kind.send, Kind.recv) and step.peer == peer
    }


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_direct_ends_copy_nothing(collective: Collective) -> None:
    """Two islands of one vendor in a host, and one of the other vendor over RDMA."""
    places = ["a/nvidia", "a/nvidia", "b/amd", "b/amd"]
    topology = devices(places, fabric="roce", kernels=True, direct=places, islands="xyzz")
    plans = _core.Planner(topology).plan_all(Spec(collective, count=3 * MIB))
    if collective.name == "barrier":
        plans = _core.Planner(topology).plan_all(Spec(collective))
    assert _core.check(topology, plans) == []
    for plan in plans:
        assert plan.staging_bytes == 0 and staging_copies(plan) == 0


@pytest.mark.parametrize("collective", [Collective.all_reduce, Collective.all_to_all])
def test_one_plan_has_direct_and_staged_ends(collective: Collective) -> None:
    """rank 0 reaches 1 directly and stages with 2 and 3; 4 is in its host, of another vendor."""
    places = ["a/nvidia", "b/amd", "c/amd", "d/cpu", "a/amd"]
    topology = devices(places, fabric="roce", direct=["a/nvidia", "b/amd"])
    infos = topology.ranks
    for rank in (2, 3):
        nics = infos[rank].nics
        nics[0].fabric = _core.Fabric.ethernet
        infos[rank].nics = nics
    topology = _core.Topology(infos)
    plans = _core.Planner(topology).plan_all(Spec(collective, count=2 * MIB))
    assert _core.check(topology, plans) == []
    assert Space.staging not in ends(plans[0], 1) | ends(plans[1], 0)
    for peer in (2, 3, 4):
        assert ends(plans[0], peer) <= {Space.staging}
    assert Space.staging not in ends(plans[3], 0)


@pytest.mark.parametrize("number", range(40))
def test_directness_changes_no_result(number: int) -> None:
    """Every algorithm on hosts of three vendors, each rank direct or staged by chance."""
    rng = random.Random(f"direct/{number}")
    size = rng.randint(2, 8)
    places = [f"{rng.choice('abc')}/{rng.choice(('nvidia', 'amd', 'cpu'))}" for _ in range(size)]
    topology = devices(
        places,
        fabric=rng.choice(("roce", "infiniband", "ethernet")),
        kernels=rng.random() < 0.5,
        direct=[place for place in places if rng.random() < 0.6],
        islands="".join(rng.choice("xyz") for _ in places),
        direct_bytes=rng.choice((0, 1000, 100_000)),
    )
    planner = _core.Planner(topology)
    for collective in COLLECTIVES:
        spec = random_spec(rng, collective, size)
        for algorithm in applicable(spec, topology):
            errors = _core.check_algorithm(planner, spec, algorithm)
            assert not errors, "\n".join([f"{spec} {algorithm.name}", *errors, describe(topology)])


def test_a_direct_message_is_one_step_and_costs_the_wire() -> None:
    count = 64 * MIB // 4
    rate = 10 * GBIT
    places = ["a/nvidia", "b/amd"]
    topology = devices(places, bandwidth=rate, fabric="infiniband", direct=places)
    send = _core.message_plan(topology, 0, Collective.send, 1, Dtype.float32, count)
    recv = _core.message_plan(topology, 1, Collective.recv, 0, Dtype.float32, count)
    assert [step.kind for step in send.steps + recv.steps] == [Kind.send, Kind.recv]
    send.spec = recv.spec = Spec(Collective.send, Dtype.float32, count=count)
    cost = _core.predict(topology, [send, recv])
    assert cost.staging == cost.island == 0
    assert 0 <= cost.total - 4 * count * 1_000_000_000 // rate < 10_000


def test_inside_a_host_a_direct_message_needs_no_core() -> None:
    count = 64 * MIB // 4
    for direct, busy in (["a/nvidia"], False), ([], True):
        topology = devices(["a/nvidia", "a/nvidia"], direct=direct, islands="xy")
        send = _core.message_plan(topology, 0, Collective.send, 1, Dtype.float32, count)
        recv = _core.message_plan(topology, 1, Collective.recv, 0, Dtype.float32, count)
        send.spec = recv.spec = Spec(Collective.send, Dtype.float32, count=count)
        cost = _core.predict(topology, [send, recv])
        assert (cost.total > 3_000_000) == busy and (cost.staging > 0) == busy


def test_only_long_messages_inside_a_host_are_direct() -> None:
    for count, direct in ((1023, False), (1024, True)):
        topology = devices(["a/nvidia"] * 2, direct=["a/nvidia"], islands="xy", direct_bytes=4096)
        for rank, way in enumerate((Collective.send, Collective.recv)):
            plan = _core.message_plan(topology, rank, way, 1 - rank, Dtype.float32, count)
            assert (plan.staging_bytes == 0) == direct, (rank, count)


def send_from_staging(plan: Plan) -> bool:
    steps = plan.steps
    for step in steps:
        if step.kind == Kind.send:
            ranges = step.sources
            ranges[0].space = Space.staging
            step.sources = ranges
            plan.steps, plan.staging_bytes = steps, ranges[0].end
            return True
    return False


def receive_into_staging(plan: Plan) -> bool:
    steps = plan.steps
    for step in steps:
        if step.kind == Kind.recv:
            target = step.target
            target.space = Space.staging
            step.target = target
            plan.steps, plan.staging_bytes = steps, target.end
            return True
    return False


@pytest.mark.parametrize("fault", [send_from_staging, receive_into_staging])
def test_staging_at_a_direct_end_is_rejected(fault: Callable[[Plan], bool]) -> None:
    places = ["a/nvidia", "b/amd"]
    topology = devices(places, fabric="roce", direct=places)
    plans = _core.Planner(topology).plan_all(Spec(Collective.all_gather, count=1000))
    assert _core.check(topology, plans) == []
    assert fault(plans[0])
    assert "expected no staging, for this message is direct" in "\n".join(
        _core.check(topology, plans)
    )
