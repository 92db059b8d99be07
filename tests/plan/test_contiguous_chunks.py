"""Chunks of a buffer are contiguous, as native libraries want them. Messages are not too short."""

from __future__ import annotations

import random
import statistics

import pytest
from generated import applicable, random_spec, random_topology, topology_of

from hetcomm._core import Collective, Plan, Planner, Spec, Step, StepKind, Topology

MI = 1 << 20
KINDS = (StepKind.island_reduce_scatter, StepKind.island_all_gather)


def shards(step: Step) -> list[tuple[int, int, int]]:
    """The owner, the first element and the number of elements of each shard of a chunk."""
    scatters = step.kind == StepKind.island_reduce_scatter
    joined: list[tuple[int, int, int]] = []
    for piece in step.pieces:
        owner = piece.to if scatters else piece.from_
        side = piece.source if scatters else piece.target
        first = side.offset // 4
        if joined and joined[-1][0] == owner and sum(joined[-1][1:]) == first:
            owner, before, count = joined.pop()
            joined.append((owner, before, count + side.count))
        else:
            joined.append((owner, first, side.count))
    return joined


@pytest.mark.parametrize("seed", range(40))
def test_an_island_step_has_one_range_of_equal_shards(seed: int) -> None:
    """Of an all_reduce, in islands of equal uplinks. The last shard may be longer."""
    rng = random.Random(seed)
    topology = random_topology(rng, 24)
    spec = Spec(Collective.all_reduce, count=rng.choice((16_384, 70_001, 3 * MI + 5)))
    planner = Planner(topology)
    for algorithm in applicable(spec, topology):
        for plan in planner.plan_all(spec, algorithm.name):
            members = topology.islands[topology.island_of(plan.rank)]
            if len({topology.uplink(rank) for rank in members}) > 1:
                continue
            ends: dict[StepKind, int] = dict.fromkeys(KINDS, 0)
            for step in plan.steps:
                if step.kind not in KINDS:
                    continue
                cut = shards(step)
                owners, firsts, counts = zip(*cut, strict=True)
                assert firsts[0] == ends[step.kind], "chunks follow each other"
                ends[step.kind] = sum(cut[-1][1:])
                assert owners in (tuple(members), (members[-1],)), cut
                assert set(counts[:-1]) <= {counts[0]} and counts[-1] >= counts[0], cut


def messages(plans: list[Plan]) -> list[int]:
    """The bytes of each message."""
    return [
        step.sources[0].count * 4
        for plan in plans for step in plan.steps if step.kind == StepKind.send
    ]  # fmt: skip


@pytest.mark.parametrize("sizes", [[8] * 16, [1] * 40, [20, 30]])
@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "all_gather", "reduce_scatter"])
def test_messages_of_many_ranks_are_long(sizes: list[int], name: str) -> None:
    blocks = 1 if name in ("all_reduce", "broadcast") else sum(sizes)
    spec = Spec(Collective.__members__[name], count=24 * MI // blocks)
    topology = topology_of(sizes)
    for algorithm in applicable(spec, topology):
        sent = messages(Planner(topology).plan_all(spec, algorithm.name))
        assert statistics.median(sent) >= 128 << 10, algorithm


def test_a_fast_wire_has_long_messages() -> None:
    """At 100 Gbit/s a rank needs as long to issue a send and a receive over TCP as the wire for
    125 KB."""
    for bandwidth, least in ((125_000_000, 1_250), (12_500_000_000, 125_000)):
        topology = topology_of([1] * 24, bandwidth=bandwidth)
        plans = Planner(topology).plan_all(
            Spec(Collective.all_reduce, count=4 * MI), "hierarchical_ring"
        )
        length = statistics.median(messages(plans))
        assert least <= length < 2 * max(least, (512 << 10) // 24), bandwidth


@pytest.mark.parametrize("seed", range(20))
def test_chunks_of_random_specs_have_few_lengths(seed: int) -> None:
    """All chunks but the last are equal, so their plans repeat."""
    rng = random.Random(seed)
    topology = random_topology(rng, 16)
    for collective in (Collective.all_reduce, Collective.broadcast, Collective.reduce):
        spec = random_spec(rng, collective, len(topology))
        for algorithm in applicable(spec, topology):
            for plan in Planner(topology).plan_all(spec, algorithm.name):
                lengths = lengths_of(topology, plan)
                assert len(set(lengths[:-1])) <= 1, lengths


def lengths_of(topology: Topology, plan: Plan) -> list[int]:
    """The elements of each chunk, by the island steps that begin or end it."""
    kind = KINDS[plan.spec.collective == Collective.broadcast]
    if len(topology.islands) == 1:
        return []
    return [
        sum(piece.source.count for piece in step.pieces)
        for step in plan.steps if step.kind == kind
    ]  # fmt: skip


@pytest.mark.parametrize("sizes", [[7, 8], [5, 6, 7, 8], [3, 4], [1, 1]])
@pytest.mark.parametrize("mebibytes", [1, 5, 29, 300])
def test_the_last_chunk_is_about_as_long_as_the_others(sizes: list[int], mebibytes: int) -> None:
    topology = topology_of(sizes)
    spec = Spec(Collective.all_reduce, count=(mebibytes << 18) + 3)
    for plan in Planner(topology).plan_all(spec, "hierarchical_direct"):
        lengths = lengths_of(topology, plan)
        assert not lengths or 0.5 * lengths[0] <= lengths[-1] <= 1.5 * lengths[0]


def test_residuals_of_a_rank_are_one_range() -> None:
    """A device keeps those from the first to the last that it encodes."""
    topology = topology_of([4, 4])
    spec = Spec(Collective.all_reduce, count=16 * MI, codec="int8", feedback=True)
    for plan in Planner(topology).plan_all(spec, "hierarchical_direct"):
        places = [step.sources[1] for step in plan.steps if len(step.sources) == 2 and
                  step.kind == StepKind.encode]  # fmt: skip
        first = min(place.offset for place in places) // 4
        assert max(place.offset // 4 + place.count for place in places) - first == 4 * MI
