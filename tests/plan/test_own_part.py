"""A rank's plan has its own part alone, even of collectives between all pairs of ranks."""

import random
import resource
from pathlib import Path

import pytest
from generated import applicable, devices, random_topology, topology_of

from hetcomm import _core
from hetcomm._core import Collective, Planner, SelectionTable, Spec, StepKind


@pytest.mark.parametrize("seed", range(40))
def test_a_rank_needs_its_own_splits_alone(seed: int) -> None:
    rng = random.Random(seed)
    topology = random_topology(rng, 12)
    size = len(topology)
    splits = [rng.choice((0, 1, rng.randint(0, 5000))) for _ in range(size * size)]
    spec = Spec(Collective.all_to_all, splits=splits)
    plans = Planner(topology).plan_all(spec)
    for rank, plan in enumerate(plans):
        own = splits[rank * size : (rank + 1) * size] + splits[rank::size]
        alone = Spec(Collective.all_to_all, splits=own, splits_rank=rank)
        assert alone.buffer_counts(rank, size) == spec.buffer_counts(rank, size)
        mine = Planner(topology).plan(alone, rank)
        assert mine.steps == plan.steps
        assert (mine.algorithm, mine.scratch_bytes) == (plan.algorithm, plan.scratch_bytes)


def test_splits_of_another_rank_are_rejected() -> None:
    planner = Planner(devices(["a/nvidia", "a/nvidia", "b/cpu"]))
    own = Spec(Collective.all_to_all, splits=[1, 2, 3, 1, 5, 6], splits_rank=0)
    assert planner.plan(own, 0)
    with pytest.raises(_core.InvalidArgumentError, match="splits of rank 1; got those of rank 0"):
        planner.plan(own, 1)
    with pytest.raises(_core.InvalidArgumentError, match="expected the splits of all ranks"):
        planner.plan_all(own)
    many = topology_of([16] * 3)
    with pytest.raises(_core.InvalidArgumentError, match="expected the splits of all ranks"):
        Planner(many).cost(Spec(Collective.all_to_all, splits=[5] * 96, splits_rank=0))
    for splits, rank, text in (
        ([1, 2, 3], 0, "or 2 x 3 of a rank below 3; got 3"),
        ([1, 2, 3, 1, 5, 6], 3, "or 2 x 3 of a rank below 3"),
        ([], 0, "expected the splits of rank 0; got none"),
        ([1, -2, 3, 1, 5, 6], 0, "got -2 from rank 0 to 1"),
        ([1, 2, 3, 1, 5, -6], 0, "got -6 from rank 2 to 0"),
    ):
        with pytest.raises(_core.InvalidArgumentError, match=text):
            planner.plan(Spec(Collective.all_to_all, splits=splits, splits_rank=rank), 0)


@pytest.mark.parametrize("algorithm", ["direct", "aggregated"])
@pytest.mark.parametrize("seed", range(20))
def test_a_build_of_one_rank_has_the_steps_of_a_build_of_all(algorithm: str, seed: int) -> None:
    topology = random_topology(random.Random(seed), 12)
    spec = Spec(Collective.all_to_all, count=70)
    if algorithm not in {one.name for one in applicable(spec, topology)}:
        return
    planner = Planner(topology, SelectionTable(f"all_to_all:0-inf={algorithm}"))
    for rank, plan in enumerate(planner.plan_all(spec)):
        assert planner.plan(spec, rank).steps == plan.steps


@pytest.mark.parametrize("algorithm", ["direct", "aggregated"])
def test_a_member_of_a_native_island_lists_its_own_pieces(algorithm: str) -> None:
    topology = devices(["a/nvidia"] * 5 + ["b/nvidia"] * 3 + ["c/amd"] * 4 + ["c/cpu"] * 3)
    spec = Spec(Collective.all_to_all, count=70)
    for plan in Planner(topology).plan_all(spec, algorithm):
        (step,) = (one for one in plan.steps if one.kind == StepKind.island_all_to_all)
        others = len(topology) - len(plan.members) if algorithm == "aggregated" else 0
        ends = [(piece.from_, piece.to) for piece in step.pieces]
        if topology.rank(plan.rank).vendor == "cpu":
            assert len(ends) == len(plan.members) * (len(plan.members) + others)
        else:
            assert all(plan.rank in pair for pair in ends)
            assert len(ends) <= 2 * (len(plan.members) + others)
        assert {(plan.rank, member) for member in plan.members} <= set(ends)
        assert {(member, plan.rank) for member in plan.members} <= set(ends)


def test_unlike_pieces_between_two_members_are_rejected() -> None:
    topology = devices(["a/nvidia"] * 3 + ["b/cpu"])
    spec = Spec(Collective.all_to_all, count=70)
    for change in ("drop", "shift", "foreign"):
        plans = Planner(topology).plan_all(spec)
        steps = plans[1].steps
        index = next(i for i, one in enumerate(steps) if one.kind == StepKind.island_all_to_all)
        pieces = steps[index].pieces
        place = next(i for i, piece in enumerate(pieces) if (piece.from_, piece.to) == (2, 1))
        if change == "drop":
            del pieces[place]
        elif change == "shift":
            target = pieces[place].target
            target.offset += 4
            pieces[place].target = target
        else:
            pieces[place].to = 0
        steps[index].pieces = pieces
        plans[1].steps = steps
        found = _core.check(topology, plans)
        wanted = (
            "expected its own pieces" if change == "foreign" else "ranks 2 and 1 list different"
        )
        assert any(wanted in line for line in found), found


def test_plans_of_ever_new_sizes_take_bounded_memory() -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    planner = Planner(topology_of([8] * 128))
    planner.plan(Spec(Collective.all_to_all, count=20_000), 0)
    before = resident()
    for count in range(20_001, 20_701):
        assert len(planner.plan(Spec(Collective.all_to_all, count=count), 0).steps) > 2000
    assert resident() - before < 160 << 20
