"""TORCH_DISTRIBUTED_DEBUG=DETAIL: torch compares all calls over gloo before hetcomm sees them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")


def prepare() -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # torch reads the variable when it is loaded


def train(rank: int, size: int) -> list[float]:
    wrapped = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert type(wrapped).__name__ == "_ProcessGroupWrapper", type(wrapped)
    assert wrapped.wrapped_pg.name() == "hetcomm"
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(6, 3), bucket_cap_mb=0.00001)
    data = [torch.Generator().manual_seed(50 + peer) for peer in range(size)]
    alone = nn.Linear(6, 3)
    alone.load_state_dict(model.module.state_dict())
    for _ in range(3):
        batches = [torch.randn(4, 6, generator=one) for one in data]
        for one, batch in ((model, batches[rank]), (alone, torch.cat(batches))):
            one.zero_grad()
            one(batch).square().mean().backward()
            with torch.no_grad():
                for parameter in one.parameters():
                    parameter -= 0.1 * parameter.grad
    return [
        (a - b).abs().max().item()
        for a, b in zip(model.parameters(), alone.parameters(), strict=True)
    ]


@pytest.mark.parametrize("layout", ["aa", "abb"])
def test_data_parallel_training_works_in_debug_mode(job: Callable[..., Job], layout: str) -> None:
    for differences in values(job(layout, prepare=prepare), train):
        assert max(differences) < 1e-6, differences


def differ(rank: int, size: int) -> list[str]:
    texts = []
    for call in (
        lambda: dist.all_reduce(torch.ones(3)) if rank else dist.broadcast(torch.ones(3), 0),
        lambda: dist.all_reduce(torch.ones(3 + rank)),
    ):
        with pytest.raises(RuntimeError) as raised:
            call()
        texts.append(str(raised.value))
        total = torch.ones(3)
        dist.all_reduce(total)  # hetcomm has not seen the mismatch
        assert total[0] == size
    return texts


def test_different_calls_are_reported(job: Callable[..., Job]) -> None:
    for texts in values(job("aa", prepare=prepare), differ):
        assert "Detected mismatch between collectives" in texts[0], texts
        assert "ALLREDUCE" in texts[0] and "BROADCAST" in texts[0], texts
        assert "Detected mismatch between collectives" in texts[1], texts


def subgroups(rank: int, size: int) -> float:
    group = dist.new_group([0, 2])
    if rank == 1:
        return 0
    total = torch.ones(3)
    dist.all_reduce(total, group=group)
    return total[0].item()


def test_groups_of_some_ranks_work_in_debug_mode(job: Callable[..., Job]) -> None:
    assert values(job("abb", prepare=prepare), subgroups) == [2.0, 0, 2.0]
