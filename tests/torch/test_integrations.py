"""Parts of torch that build on process groups, over hetcomm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from ranks import Job, values
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def _reductions(x: torch.Tensor) -> torch.Tensor:
    everybody = dist.group.WORLD
    total = functional.all_reduce(x * 2, "sum", everybody)
    gathered = functional.all_gather_tensor(total + 1, 0, everybody)
    return functional.reduce_scatter_tensor(gathered, "sum", 0, everybody) - x


def _moves_and_batches(x: torch.Tensor) -> torch.Tensor:
    everybody = dist.group.WORLD
    exchanged = functional.all_to_all_single(x, None, None, everybody)
    shared = functional.broadcast(exchanged + 1, 0, everybody)
    totals = functional.all_reduce_coalesced([shared, shared * 2], "sum", everybody)
    gathered = functional.all_gather_into_tensor_coalesced(totals, everybody)
    scattered = functional.reduce_scatter_tensor_coalesced(gathered, "sum", [0, 0], everybody)
    return torch.cat([one + 1 for one in scattered])


def functional_collectives(rank: int, size: int, compiler: str) -> list[list[float]]:
    x = torch.arange(12.0) + rank
    results = []
    for function in (_reductions, _moves_and_batches):
        compiled = torch.compile(function, fullgraph=True, backend=compiler)
        results += [function(x).tolist(), compiled(x).tolist()]
    return results


@pytest.mark.parametrize(
    ("layout", "compiler"),
    [("aa", "aot_eager"), ("ab", "aot_eager"), ("abab", "aot_eager"), ("aa", "inductor")],
)
def test_functional_collectives_work_eager_and_compiled(
    job: Callable[..., Job], layout: str, compiler: str
) -> None:
    size = len(layout)
    everyone = [torch.arange(12.0) + rank for rank in range(size)]
    total = 2 * sum(everyone)
    # The first block of every rank is that of rank 0.
    shared = torch.cat([x[: 12 // size] for x in everyone]) + 1
    batches = torch.cat([size * size * factor * shared + 1 for factor in (1, 2)])
    for rank, results in enumerate(values(job(layout), functional_collectives, compiler)):
        reduced = ((total + 1) * size - everyone[rank]).tolist()
        assert results == [reduced, reduced, batches.tolist(), batches.tolist()]


def save_and_load(rank: int, size: int, folder: str) -> bool:
    def sharded(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return fully_shard(torch.nn.Linear(33, 17), mesh=init_device_mesh("cpu", (size,)))

    first, second = sharded(1), sharded(2)
    checkpoint.save({"model": first.state_dict()}, checkpoint_id=folder)
    state = {"model": second.state_dict()}
    differed = not torch.equal(state["model"]["weight"].full_tensor(), first.weight.full_tensor())
    checkpoint.load(state, checkpoint_id=folder)
    second.load_state_dict(state["model"])
    same = torch.equal(second.weight.full_tensor(), first.weight.full_tensor())
    return differed and same


@pytest.mark.parametrize("layout", ["aab", "abab"])
def test_distributed_checkpoints_are_saved_and_loaded(
    job: Callable[..., Job], tmp_path: Path, layout: str
) -> None:
    assert all(values(job(layout), save_and_load, str(tmp_path / "saved")))


def beside_gloo(rank: int, size: int) -> tuple[float, float, str]:
    gloo, ours = dist.new_group(backend="gloo"), dist.new_group(backend="cpu:hetcomm")
    one, other = torch.full((5,), rank + 1.0), torch.full((5,), rank + 1.0)
    works = [dist.all_reduce(one, group=gloo, async_op=True)]
    works.append(dist.all_reduce(other, group=ours, async_op=True))
    for work in works:
        work.wait()
    return one[0].item(), other[0].item(), dist.get_backend(ours)


@pytest.mark.parametrize(("layout", "total"), [("ab", 3.0), ("abab", 10.0)])
def test_hetcomm_works_beside_another_backend(
    job: Callable[..., Job], layout: str, total: float
) -> None:
    for result in values(job(layout), beside_gloo):
        assert result == (total, total, "cpu:hetcomm")
