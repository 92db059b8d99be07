"""Plans with a codec: the checker proves them, and rejects faults of encoded ranges."""

import random
import re
from collections.abc import Callable

import pytest
from generated import (
    COLLECTIVES,
    GBIT,
    applicable,
    describe,
    random_spec,
    random_topology,
    topology_of,
    with_devices,
)

from hetcomm import _core, explain_plan
from hetcomm._core import Plan, StepKind

SEED = 20261123
BATCHES, TOPOLOGIES_PER_BATCH = 10, 200

Change = Callable[[list[Plan]], None]


def kinds(plans: list[Plan]) -> list[str]:
    return [step.kind.name for plan in plans for step in plan.steps]


@pytest.mark.parametrize("codec", ["lossless"])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_plan_with_a_codec_is_proven(batch: int, codec: str) -> None:
    encoded = 0
    for number in range(TOPOLOGIES_PER_BATCH):
        seed = f"{SEED}/{batch}/{number}"
        rng = random.Random(seed)
        topology = random_topology(rng, most_ranks=24)
        if number % 2:
            topology = with_devices(rng, topology)
        planner = _core.Planner(topology, codec=codec)
        spec = random_spec(rng, rng.choice(COLLECTIVES), len(topology))
        for algorithm in applicable(spec, topology):
            plans = planner.plan_all(spec, algorithm.name)
            errors = _core.check(topology, plans)
            assert not errors, "\n".join(
                [f"seed {seed}, {spec} by {algorithm.name}:", *errors, describe(topology)]
            )
            assert kinds(plans).count("encode") <= kinds(plans).count("decode")
            if "encode" in kinds(plans):
                assert _core.predict(topology, plans).total > 0
                encoded += 1
            own = [planner.plan(spec, rank) for rank in range(len(topology))]
            if own[0].algorithm == algorithm.name:
                assert [plan.steps for plan in own] == [plan.steps for plan in plans], seed
                assert [p.scratch_bytes for p in own] == [p.scratch_bytes for p in plans], seed
    assert encoded > 10


def all_reduce(sizes: list[int], count: int = 1 << 20, **spec: object) -> list[Plan]:
    planner = _core.Planner(topology_of(sizes), codec="lossless")
    return planner.plan_all(_core.Spec(_core.Collective.all_reduce, count=count, **spec))


def test_only_long_messages_between_hosts_are_encoded() -> None:
    assert "encode" in kinds(all_reduce([2, 2]))
    assert "encode" not in kinds(all_reduce([4]))
    assert "encode" not in kinds(all_reduce([2, 2], count=4000))
    assert "encode" not in kinds(all_reduce([2, 2], dtype=_core.Dtype.int32))
    assert "encode" in kinds(all_reduce([2, 2], dtype=_core.Dtype.bfloat16))


def test_a_link_of_several_nics_is_not_encoded() -> None:
    """Both ends of a striped link must know the length of a message."""

    def nic(number: int, host: int) -> _core.Nic:
        return _core.Nic(
            name=f"eth{number}",
            interface=f"eth{number}",
            bandwidth=GBIT,
            bandwidth_known=True,
            address=f"198.18.{number}.{host}",
            subnet=f"198.18.{number}.0/24",
        )

    def topology(rails: bool) -> _core.Topology:
        return _core.Topology(
            [
                _core.RankInfo(
                    host=f"h{host}",
                    host_name=f"h{host}",
                    rails=rails,
                    nics=[nic(0, host), nic(1, host)],
                )
                for host in (1, 2)
            ]
        )

    spec = _core.Spec(_core.Collective.all_reduce, count=1 << 20)
    for rails in (False, True):
        found = topology(rails)
        assert bool(found.rails(0, 1)) == rails
        plans = _core.Planner(found, codec="lossless").plan_all(spec)
        assert ("encode" in kinds(plans)) != rails


def test_unequal_blocks_are_not_encoded() -> None:
    """Ranks notice splits that differ by the lengths of messages."""
    for splits in ([], [100_000] * 4):
        count = 0 if splits else 100_000
        spec = _core.Spec(_core.Collective.all_to_all, count=count, splits=splits)
        plans = _core.Planner(topology_of([1, 1]), codec="lossless").plan_all(spec)
        assert ("encode" in kinds(plans)) == (not splits)


def test_parts_are_equal_and_bounded() -> None:
    for count in ((1 << 20) + 16, 400 << 20):
        plans = all_reduce([1, 1], count=count)
        parts = [step.target for step in plans[0].steps if step.kind == StepKind.encode]
        assert min(part.count for part in parts) > max(part.count for part in parts) * 0.9
        assert len(parts) <= 32 * 256


def test_a_message_to_several_hosts_is_encoded_once() -> None:
    topology = topology_of([1, 1, 1, 1])
    planner = _core.Planner(topology, codec="lossless")
    spec = _core.Spec(_core.Collective.all_reduce, count=100_000)
    plans = planner.plan_all(spec, "hierarchical_direct")
    for plan in plans:
        assert kinds([plan]).count("encode") == 1
        assert kinds([plan]).count("send") == kinds([plan]).count("decode") == 3


def test_the_prediction_has_fewer_bytes_between_hosts() -> None:
    topology = topology_of([2, 2])
    spec = _core.Spec(_core.Collective.all_reduce, _core.Dtype.bfloat16, count=32 << 20)
    plain = _core.predict(topology, _core.Planner(topology).plan_all(spec))
    encoded = _core.predict(topology, _core.Planner(topology, codec="lossless").plan_all(spec))
    assert 0.7 < encoded.bridge_bytes / plain.bridge_bytes < 0.75
    assert encoded.total < 0.8 * plain.total


def place(plans: list[Plan], kind: StepKind) -> tuple[Plan, int]:
    for plan in plans:
        for index, step in enumerate(plan.steps):
            if step.kind == kind:
                return plan, index
    raise AssertionError(f"no {kind} in the plans")


def change(plan: Plan, index: int, **attributes: object) -> None:
    steps = plan.steps
    for name, value in attributes.items():
        setattr(steps[index], name, value)
    plan.steps = steps


def missing_decode(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.decode)
    change(plan, index, kind=StepKind.copy)


def missing_encode(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.encode)
    change(plan, index, kind=StepKind.copy)


def decoded_twice(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.reduce)
    change(plan, index, kind=StepKind.decode, sources=plan.steps[index].sources[:1])


def encoded_twice(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.decode)
    change(plan, index, kind=StepKind.encode)


def reduced_while_encoded(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.decode)
    encoded = plan.steps[index].sources[0]
    reduce = place([plan], StepKind.reduce)[1]
    own, _ = plan.steps[reduce].sources
    change(plan, reduce, sources=[own, encoded])


def received_as_plain(plans: list[Plan]) -> None:
    plan, index = place(plans, StepKind.recv)
    target = plan.steps[index].target
    target.codec = "none"
    change(plan, index, target=target)


def part_of_encoded_elements(plans: list[Plan]) -> None:
    """Both ends agree on half of what was encoded."""
    for plan in plans:
        for index, step in enumerate(plan.steps):
            if step.kind not in (StepKind.send, StepKind.recv, StepKind.decode):
                continue
            sources, target = step.sources, step.target
            for source in sources:
                source.count //= 2
            target.count //= 2
            change(plan, index, sources=sources, target=target)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (missing_decode, "expected plain elements, got .*encoded"),
        (missing_encode, "expected elements of its codec, got"),
        (decoded_twice, "cannot be applied to"),
        (encoded_twice, "cannot be applied to .*encoded"),
        (reduced_while_encoded, "expected plain elements"),
        (received_as_plain, "expected plain elements, got .*encoded"),
        (part_of_encoded_elements, "expected all that one step encoded"),
    ],
)
def test_a_fault_of_encoded_ranges_is_rejected(fault: Change, text: str) -> None:
    topology = topology_of([1, 1])
    plans = all_reduce([1, 1], count=5000)
    assert _core.check(topology, plans) == []
    fault(plans)
    errors = _core.check(topology, plans)
    assert re.search(text, "\n".join(errors)), errors


@pytest.mark.parametrize(
    ("gbits", "count", "dtype", "codec"),
    [
        (1, 16 << 20, "float32", "lossless"),
        (1, 16 << 20, "bfloat16", "lossless"),
        (1, 16 << 20, "int32", "none"),
        (1, 1000, "float32", "none"),
        (100, 16 << 20, "bfloat16", "none"),
        (0, 16 << 20, "bfloat16", "none"),  # the bandwidth is not known
    ],
)
def test_auto_encodes_where_it_is_faster(gbits: int, count: int, dtype: str, codec: str) -> None:
    topology = topology_of([2, 2], gbits * GBIT)
    spec = _core.Spec(_core.Collective.all_reduce, _core.Dtype.__members__[dtype], count=count)
    planner = _core.Planner(topology, codec="auto")
    assert planner.choose(spec).codec == codec
    for plans in (planner.plan_all(spec), planner.plan_all(spec, "hierarchical_direct")):
        assert ("encode" in kinds(plans)) == (codec != "none")
    assert [planner.plan(spec, rank).steps for rank in range(4)] == [
        plan.steps for plan in planner.plan_all(spec)
    ]


def test_auto_serves_every_collective() -> None:
    encoded = set()
    for sizes in ([2, 2], [1, 2, 3]):
        topology = topology_of(sizes, GBIT)
        planner = _core.Planner(topology, codec="auto")
        for collective in COLLECTIVES:
            count = 0 if collective.name == "barrier" else 6_000_000
            spec = _core.Spec(collective, count=count)
            for algorithm in applicable(spec, topology):
                assert not _core.check_algorithm(planner, spec, algorithm)
            if "encode" in kinds(planner.plan_all(spec)):
                encoded.add(collective.name)
    assert encoded == {collective.name for collective in COLLECTIVES} - {"barrier"}


def test_an_unknown_codec_is_rejected() -> None:
    text = r'one of none, auto, lossless, .*; got "zip"'
    with pytest.raises(_core.InvalidArgumentError, match=text):
        _core.Planner(topology_of([1, 1]), codec="zip")


def test_explain_shows_the_codec_and_the_bytes_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_BRIDGE_CODEC", "lossless")
    spec = _core.Spec(_core.Collective.all_reduce, _core.Dtype.bfloat16, count=1 << 20)
    found = explain_plan.explanation(topology_of([1, 1]), spec, [0])
    legs = {leg.what: leg for leg in found.legs[0]}
    assert found.codec == "lossless"
    here = explain_plan.explanation(topology_of([2]), spec, [0])
    assert here.codec == "none"
    assert legs["encode"].bytes == legs["decode"].bytes == 2 << 20
    sent, received = legs["send lossless to rank 1"], legs["recv lossless from rank 1"]
    assert sent.bytes == received.bytes
    assert 0 <= (2 << 20) * 710 // 1000 - sent.bytes < sent.steps
