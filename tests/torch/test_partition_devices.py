"""Partitions over islands of several vendors, and on a device with streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import emulated_device
import gpt
import pytest
import torch
import torch.distributed as dist
from partitioned import sgd, train_by_hand, train_partitioned
from ranks import Job, values
from torch import nn
from vendors import environments

import hetcomm

Levels = tuple[str, str, str]


def islands(rank: int, size: int, levels: Levels) -> dict[str, Any]:
    plain, model = gpt.model(), gpt.model()
    theirs, _ = train_by_hand(plain, sgd(plain.parameters()), dist.group.WORLD)
    optimizer = sgd(model.parameters())
    partition = hetcomm.partition(model, optimizer, *levels)
    ours, _ = train_partitioned(model, optimizer, partition, max_norm=1e9)
    return {"ours": ours, "theirs": theirs, "sizes": [d.size for d in partition.grid.dimensions]}


@pytest.mark.needs("emulated vendors")
@pytest.mark.parametrize(
    ("hosts", "vendors", "levels", "sizes"),
    [
        ("aabb", "nnaa", ("island", "island", "cluster"), [2, 1, 2, 1]),
        ("aaaa", "nana", ("island", "host", "cluster"), [2, 2, 1, 1]),
    ],
)
def test_islands_of_vendors_are_a_level(
    job: Callable[..., Job], hosts: str, vendors: str, levels: Levels, sizes: list[int]
) -> None:
    made = job(hosts, environments=environments(vendors))
    for result in values(made, islands, levels):
        assert result["ours"] == pytest.approx(result["theirs"], rel=1e-6)
        assert result["sizes"] == sizes


def prepare() -> None:
    emulated_device.load()


def on_device(rank: int, size: int) -> None:
    """Trains beside a process that has the data of all ranks. The device is late."""

    def network() -> nn.Module:
        torch.manual_seed(3)
        layers = [nn.Linear(20, 90), nn.Tanh(), nn.Linear(90, 90), nn.Tanh(), nn.Linear(90, 7)]
        return nn.Sequential(*layers)

    home = "cpu" if os.environ["HETCOMM_VENDOR"] == "cpu" else emulated_device.NAME
    model, alone = network().to(home), network()
    ours, theirs = sgd(model.parameters()), sgd(alone.parameters())
    partition = hetcomm.partition(model, ours, "cluster", "cluster", "cluster", sync=False)
    data = torch.Generator().manual_seed(5)
    for _ in range(3):
        if home != "cpu" and rank == 0:
            emulated_device.load().delay(100)
        inputs = torch.randn(size, 8, 20, generator=data)
        targets = torch.randint(0, 7, (size, 8), generator=data)
        mine = nn.functional.cross_entropy(model(inputs[rank].to(home)), targets[rank].to(home))
        whole = nn.functional.cross_entropy(alone(inputs.flatten(0, 1)), targets.flatten())
        mine.backward()
        whole.backward()
        norm = partition.clip_grad_norm_(0.5)
        expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        assert norm.cpu().item() == pytest.approx(expected.item(), rel=1e-5)
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    with partition.gathered():
        for mine, reference in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(mine.detach().cpu(), reference.detach(), atol=1e-5)


@emulated_device.needed[0]
@emulated_device.needed[1]
@pytest.mark.parametrize(("hosts", "vendors"), [("aa", "nn"), ("ab", "nc")])
def test_streams_wait_for_gathers_and_reductions(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    emulated_device.build()
    backend = f"cpu:hetcomm,{emulated_device.NAME}:hetcomm"
    made = job(hosts, environments=environments(vendors), prepare=prepare, backend=backend)
    values(made, on_device)
