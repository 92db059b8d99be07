"""A rank's place in a layout, its groups and its partners; layouts that do not fit the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import staged
import torch
import torch.distributed as dist
from ranks import Job, check_texts, refusal, values
from staged import layout
from torch.distributed import pipelining
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from hetcomm import plan
from hetcomm.plan import Layout, Replica, Stage

# Two stages of two replicas; pairs of a replica are tensor ranks.
EVEN = Layout(
    stages=(
        Stage(((0, 2),), (Replica((0, 1)), Replica((2, 3)))),
        Stage(((2, 4),), (Replica((4, 5)), Replica((6, 7)))),
    ),
    batch=4,
    micro_batch=1,
)
# Tensor degrees 2, 1 and 3 in replica 0; 1, 1 and 1 in replica 1.
UNLIKE = Layout(
    stages=(
        Stage(((0, 1),), (Replica((4, 1)), Replica((6,)))),
        Stage(((1, 4),), (Replica((0,)), Replica((7,)))),
        Stage(((4, 6),), (Replica((8, 2, 3)), Replica((5,)))),
    ),
    batch=staged.BATCH,
    micro_batch=2,
)


def members(group: Any) -> list[int]:
    return dist.get_process_group_ranks(group)


def groups(rank: int, size: int, path: Path) -> dict[str, Any]:
    job = plan.load(path)
    return {
        "place": (job.stage, job.replica, job.context_rank, job.tensor_rank),
        "data": [members(group) for group in job.data_groups],
        "tensor": members(job.tensor_group),
        "context": members(job.context_group),
        "pipeline": members(job.pipeline_group),
        "partners": (job.previous.source, job.previous.targets, job.next.source, job.next.targets),
        "mesh": refusal(lambda: job.mesh),
        "data_group": refusal(lambda: job.data_group),
    }


def test_a_rectangular_layout_has_one_group_in_each_dimension(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    EVEN.save(tmp_path / "layout.json")
    found = values(job("a" * 8, backend="gloo"), groups, tmp_path / "layout.json")
    assert found[5] == {
        "place": (1, 0, 0, 1),
        "data": [[5, 7]],
        "tensor": [4, 5],
        "context": [5],
        "pipeline": [1, 5],
        "partners": (1, (1,), 1, (1,)),
        "mesh": "no error",
        "data_group": "no error",
    }
    assert [each["data"] for each in found[:4]] == [[[0, 2]], [[1, 3]], [[0, 2]], [[1, 3]]]


def test_unlike_degrees_have_a_data_group_for_each_part(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    UNLIKE.save(tmp_path / "layout.json")
    found = values(job("a" * 9, backend="gloo"), groups, tmp_path / "layout.json")
    assert found[6]["data"] == [[4, 6], [1, 6]]
    assert found[5]["data"] == [[5, 8], [2, 5], [3, 5]]
    assert found[2]["data"] == [[2, 5]]
    assert found[2]["tensor"] == [2, 3, 8]
    assert found[0]["partners"] == (4, (4, 1), 8, (8, 2, 3))
    assert found[1]["partners"][2:] == (0, ())  # rank 4 alone sends this stage's activations
    assert found[3]["partners"][:2] == (0, ())  # and rank 8 alone the last stage's gradients
    for each in found:
        assert "expected equal context and tensor degrees in all replicas" in each["mesh"]
    check_texts([[found[6]["data_group"]], [found[0]["data_group"]]], ["of stage 0, got|no error"])


def tensors_of_mesh(rank: int, size: int, path: Path) -> list[Any]:
    mesh = plan.load(path).mesh
    total = torch.arange(8.0).reshape(4, 2)
    split = distribute_tensor(total, mesh, [Replicate(), Shard(0), Replicate(), Shard(1)])
    assert isinstance(split, DTensor)
    assert torch.equal(split.full_tensor(), total)
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    found = (mesh.mesh_dim_names, mesh.shape, coordinate, members(mesh["data"].get_group()))
    return [list(each or ()) for each in found]


def test_the_mesh_has_the_places_of_ranks(job: Callable[..., Job], tmp_path: Path) -> None:
    EVEN.save(tmp_path / "layout.json")
    found = values(job("a" * 8, backend="gloo"), tensors_of_mesh, tmp_path / "layout.json")
    names = ["pipeline", "data", "context", "tensor"]
    assert found[6] == [names, [2, 2, 1, 2], [1, 1, 0, 0], [4, 6]]


def context_groups(rank: int, size: int, path: Path) -> list[Any]:
    job = plan.load(path)
    return [
        members(job.data_group), members(job.context_group), members(job.tensor_group),
        members(job.mesh["data"].get_group()), job.context_rank, job.tensor_rank,
    ]  # fmt: skip


def test_context_ranks_share_weights(job: Callable[..., Job], tmp_path: Path) -> None:
    replicas = (Replica((0, 1, 2, 3), context=2), Replica((4, 5, 6, 7), context=2))
    Layout((Stage(((0, 3),), replicas),), batch=2, micro_batch=1).save(tmp_path / "layout.json")
    found = values(job("a" * 8, backend="gloo"), context_groups, tmp_path / "layout.json")
    assert found[6] == [[0, 2, 4, 6], [4, 6], [6, 7], [2, 6], 1, 0]


def test_a_pipeline_of_unlike_degrees_trains(job: Callable[..., Job], tmp_path: Path) -> None:
    """The ranks of a replica run equal layers here, so each of them has the model's losses."""
    chosen = replace(
        UNLIKE, stages=tuple(replace(s, replicas=s.replicas[:1]) for s in UNLIKE.stages)
    )
    place = {rank: index for index, rank in enumerate(chosen.ranks)}
    chosen = replace(
        chosen,
        stages=tuple(
            replace(s, replicas=(Replica(tuple(place[r] for r in s.replicas[0].ranks)),))
            for s in chosen.stages
        ),
    )
    ranks = job("a" * 6, backend="gloo")
    make = partial(staged.model, 4)
    staged.check(ranks, tmp_path / "layout.json", chosen, make, divide=dict)


def numbers(rank: int, size: int, path: Path) -> list[int]:
    job = plan.load(path)
    return job.share(torch.arange(job.layout.batch)).tolist()


def test_shares_divide_the_batch(job: Callable[..., Job], tmp_path: Path) -> None:
    layout([[6]], replicas=3, shares=(1, 3, 2)).save(tmp_path / "layout.json")
    found = values(job("aaa", backend="gloo"), numbers, tmp_path / "layout.json")
    assert found == [[0, 1], [2, 3, 4, 5, 6, 7], [8, 9, 10, 11]]


def few(rank: int, size: int, path: Path) -> str:
    job = plan.load(path)
    tokens, _ = next(staged.batches())
    chunks = plan.split(staged.model(4), job)
    return refusal(lambda: plan.schedule(chunks, job, torch.sub, tokens[:2]))


def test_a_share_below_the_stages_is_refused_by_all_ranks(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    layout([[3, 6]], replicas=2, shares=(5, 1)).save(tmp_path / "layout.json")
    found = values(job("aaaa", backend="gloo"), few, tmp_path / "layout.json")
    check_texts([found], ["rank 1: .* that Schedule1F1B takes, got 1 for 2 stages"] * 4)


def loads(rank: int, size: int, paths: list[Path]) -> list[str]:
    """What load() says; ranks have layouts of their own."""
    return [refusal(lambda path=path: plan.load(path)) for path in (paths[rank],)]


def test_unlike_files_are_refused_by_all_ranks(job: Callable[..., Job], tmp_path: Path) -> None:
    paths = [tmp_path / f"{rank}.json" for rank in range(4)]
    for rank, path in enumerate(paths):
        layout([[6]], replicas=4, recompute=rank in (1, 3)).save(path)
    found = values(job("aabb", backend="gloo"), loads, paths)
    expected = r"expected the same on all ranks, but ranks \[1, 3\] hold another one than rank 0"
    check_texts(found, [expected])


def test_a_missing_file_is_refused_by_all_ranks(job: Callable[..., Job], tmp_path: Path) -> None:
    layout([[3, 6]]).save(tmp_path / "layout.json")
    paths = [tmp_path / "layout.json", tmp_path / "absent.json"]
    found = values(job("aa", backend="gloo"), loads, paths)
    check_texts(found, ["rank 1: layout .*absent.json: .*No such file"])


def test_a_layout_of_other_ranks_is_refused(job: Callable[..., Job], tmp_path: Path) -> None:
    layout([[2, 4, 6]]).save(tmp_path / "layout.json")
    found = values(job("aa", backend="gloo"), loads, [tmp_path / "layout.json"] * 2)
    expected = r"ranks 0 to 1 of this job, got \[0, 1, 2\]; start 3 ranks, or plan for this job"
    check_texts(found, [expected])


def test_unlike_context_degrees_are_refused(job: Callable[..., Job], tmp_path: Path) -> None:
    stages = (Stage(((0, 1),), (Replica((0, 1), context=2),)), Stage(((1, 3),), (Replica((2,)),)))
    Layout(stages, batch=1, micro_batch=1).save(tmp_path / "layout.json")
    found = values(job("aaa", backend="gloo"), loads, [tmp_path / "layout.json"] * 3)
    check_texts(found, [r"one context degree in all stages of replica 0, got \[2, 1\]"])


def test_load_needs_a_group(tmp_path: Path) -> None:
    assert "call torch.distributed.init_process_group() first" in refusal(
        lambda: plan.load(tmp_path / "layout.json")
    )


class Broken(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x


def mistakes(rank: int, size: int, path: Path) -> list[str]:
    job = plan.load(path)
    chunks = plan.split(staged.model(4), job)
    tokens, _ = next(staged.batches())

    def schedule(chunks: Any = chunks, samples: int = staged.BATCH) -> Any:
        return plan.schedule(chunks, job, torch.sub, tokens[:samples])

    found = [
        refusal(lambda: schedule(samples=5)),
        refusal(lambda: job.share(tokens[:5])),
        refusal(lambda: schedule(chunks=chunks[0] if rank == 1 else chunks)),
        refusal(lambda: schedule(chunks=chunks * 2 if rank == 1 else chunks)),
        refusal(lambda: schedule(chunks=[Broken()] if job.is_last else chunks)),
        refusal(lambda: job.mesh),
        refusal(schedule),
    ]
    del pipelining.Schedule1F1B
    return [*found, refusal(schedule)]


def test_mistakes_are_refused(job: Callable[..., Job], tmp_path: Path) -> None:
    chosen = layout([[3, 6]], order=[1, 0], micro_batch=staged.BATCH)
    chosen.save(tmp_path / "layout.json")
    found = values(job("aa", backend="gloo"), mistakes, tmp_path / "layout.json")
    expected = [
        "example: expected the 12 samples of a micro-batch of the layout, got 5",
        "batch: expected the 12 samples of the layout, got 5",
        r"rank 1: chunks: expected the list of 1 chunks of plan.split\(\), got Chunk; pass",
        r"rank 1: chunks: .* got \['Chunk', 'Chunk'\]",
        "rank 0: chunk 1: expected one tensor as its output, got tuple",
        r"ascending ranks along the mesh's dimension 'pipeline', got \[\[\[\[1\]\]\], ",
        "micro-batches that Schedule1F1B takes, got 1 for 2 stages",
        'it has no Schedule1F1B for "1f1b"; choose another schedule',
    ]
    check_texts(found, expected)
