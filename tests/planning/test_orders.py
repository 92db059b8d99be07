"""The rank order for launchers gives the data groups of the layout, by the formulas of Holmes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hetcomm
from hetcomm import plan
from hetcomm.plan import Layout, Replica, Stage


def formula_groups(world: int, stages: int, tensor: int) -> dict[str, list[list[int]]]:
    """The groups of arXiv 2312.03549, of the launcher's ranks."""
    block = world // stages
    return {
        "data": [
            list(range(i * block + j, (i + 1) * block, tensor))
            for i in range(stages)
            for j in range(tensor)
        ],
        "tensor": [list(range(i, i + tensor)) for i in range(0, world, tensor)],
        "pipeline": [list(range(i, world, block)) for i in range(block)],
    }


def two_clusters(tensor: int) -> Layout:
    """Two stages; even ranks have one kind of NIC and run the first, odd ranks run the second."""
    world = 16
    ranks = [list(range(kind, world, 2)) for kind in range(2)]
    return Layout(
        stages=tuple(
            Stage(
                chunks=(chunk,),
                replicas=tuple(
                    Replica(tuple(own[start : start + tensor]))
                    for start in range(0, len(own), tensor)
                ),
            )
            for own, chunk in zip(ranks, [(0, 27), (27, 50)], strict=True)
        ),
        batch=8,
        micro_batch=1,
    )


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_the_order_gives_the_groups_of_the_layout(tensor: int) -> None:
    chosen = two_clusters(tensor)
    order = plan.rank_order(chosen)
    assert sorted(order) == list(range(16))
    found = {
        kind: [[order[rank] for rank in group] for group in groups]
        for kind, groups in formula_groups(16, 2, tensor).items()
    }
    assert found["data"] == [*chosen.data_groups(0), *chosen.data_groups(1)]
    assert found["tensor"] == [
        list(replica.ranks) for stage in chosen.stages for replica in stage.replicas
    ]
    assert found["pipeline"] == [
        list(pair)
        for first, second in zip(chosen.stages[0].replicas, chosen.stages[1].replicas, strict=True)
        for pair in zip(first.ranks, second.ranks, strict=True)
    ]
    for group in found["data"]:
        assert len({rank % 2 for rank in group}) == 1, "a data group has NICs of two kinds"


def test_the_second_of_unequal_stages_begins_where_the_first_ends() -> None:
    """Of 48 blocks, 26 and 22: with the embedding first, block 26 is layer 27."""
    first, second = two_clusters(1).stages
    assert (first.layers - 1, second.layers - 1) == (26, 22)
    assert second.chunks[0][0] - 1 == 26


def test_unlike_degrees_have_no_order() -> None:
    chosen = Layout((Stage(((0, 3),), (Replica((0, 1)), Replica((2,)))),), batch=2, micro_batch=1)
    with pytest.raises(hetcomm.InvalidArgumentError, match="2 in replica 0 of stage 0, 1 and 1 in"):
        plan.rank_order(chosen)


def test_layouts_need_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import hetcomm; print(hetcomm.plan.rank_order.__name__, hetcomm.plan.Layout.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "rank_order Layout\n", done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"hetcomm\.plan.*'nothing'"):
        plan.nothing  # noqa: B018
