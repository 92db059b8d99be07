"""A partition of a module that torch's tensor parallelism divides equals the whole module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpt
import pytest
import torch
import torch.distributed as dist
from partitioned import sgd
from ranks import Job, check_texts, refusal, values
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import hetcomm

STEPS, CLIP = 3, 0.5


def divided(mesh: Any) -> nn.Module:
    model = gpt.model(2)
    for block in model.blocks:
        parallelize_module(block, mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    return model


def train(
    rank: int, size: int, level: str, dtype: torch.dtype | None, norm_type: float
) -> tuple[list[float], list[float]]:
    """The losses of whole batches and the norms, by two data ranks of two tensor ranks each."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = divided(mesh["tensor"])
    optimizer = sgd(model.parameters())
    levels = {"weights": level, "gradients": level, "optimizer_states": "cluster"}
    group = mesh["data"].get_group()
    partition = hetcomm.partition(model, optimizer, group=group, dtype=dtype, **levels)
    losses, norms = [], []
    for _, (tokens, targets) in zip(range(STEPS), gpt.batches(), strict=False):
        mine = slice(*(gpt.BATCH // 2 * (mesh["data"].get_local_rank() + end) for end in (0, 1)))
        loss = gpt.loss_of(model(tokens[mine]).float(), targets[mine])
        loss.backward()
        norms.append(partition.clip_grad_norm_(CLIP, norm_type).item())
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        losses.append(mean.item() / 2)
    with partition.gathered():
        kinds = {p.dtype for p in model.parameters()} | {
            p._local_tensor.dtype for p in model.parameters() if isinstance(p, DTensor)
        }
    assert kinds == {dtype or torch.float32}
    return losses, norms


def reference(norm_type: float) -> tuple[list[float], list[float]]:
    model = gpt.model(2)
    optimizer = sgd(model.parameters())
    losses, norms = [], []
    for _, (tokens, targets) in zip(range(STEPS), gpt.batches(), strict=False):
        loss = gpt.loss_of(model(tokens), targets)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP, norm_type).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.parametrize(
    ("level", "dtype", "norm_type", "tolerance"),
    [
        ("rank", None, 2.0, 1e-6),
        ("cluster", None, float("inf"), 1e-6),
        ("cluster", torch.bfloat16, 2.0, 3e-2),
    ],
    ids=["rank", "cluster, largest", "bfloat16"],
)
def test_losses_and_norms_equal_the_whole_module(
    job: Callable[..., Job],
    level: str,
    dtype: torch.dtype | None,
    norm_type: float,
    tolerance: float,
) -> None:
    found = values(job("aabb"), train, level, dtype, norm_type)
    losses, norms = reference(norm_type)
    for each in found:
        assert each[0] == pytest.approx(losses, rel=tolerance)
        assert each[1] == pytest.approx(norms, rel=10 * tolerance)


def mistakes(rank: int, size: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh["data"].get_group(), mesh["tensor"].get_group()

    def partition(model: nn.Module, **settings: Any) -> str:
        optimizer = sgd(model.parameters())
        return refusal(lambda: hetcomm.partition(model, optimizer, **settings))

    both = divided(mesh["tensor"])
    fully_shard(both, mesh=mesh["data"])
    several = divided(mesh["tensor"])
    parallelize_module(several.head, mesh["data"], ColwiseParallel())
    return [
        partition(both, group=data),
        partition(several, group=data),
        partition(divided(mesh["tensor"]), group=data, tensor_group=data),
        partition(divided(mesh["tensor"]), group=tensor),
    ]


def test_what_cannot_be_partitioned_is_refused(job: Callable[..., Job]) -> None:
    expected = [
        "expected a plain parameter, or a DTensor of a tensor mesh of one dimension",
        "expected one tensor mesh of all DTensors",
        r"tensor_group: expected the ranks \[\d, \d\] of the parameters' mesh, got",
        "expected equal parameters, units and groups on all ranks",
    ]
    check_texts(values(job("aaaa", backend="gloo"), mistakes), expected)
