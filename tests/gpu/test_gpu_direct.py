"""Messages between islands of one GPU, without a copy through host memory where UCX can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from ranks import Job, values

from hetcomm import _core

ELEMENTS = 3_000_001


def _capability() -> str:
    """The answer of this machine's transport about the GPU's memory."""
    info = _core.probe_rank()
    info.vendor = "amd" if torch.version.hip else "nvidia"
    libraries = _core.probe_device(info).libraries
    return libraries.get("messages", libraries["runtime"])


def exchange(rank: int, size: int) -> None:
    """Messages and sums follow the order of a stream that still fills the tensors at the call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for seed in range(4):
            torch.cuda._sleep(20_000_000)
            mine = torch.full((ELEMENTS,), float(rank + seed), device="cuda")
            theirs = torch.zeros_like(mine)
            works = [dist.isend(mine, 1 - rank), dist.irecv(theirs, 1 - rank)]
            for work in works:
                work.wait()
            total = mine.clone()
            dist.all_reduce(total)
            assert bool((theirs == 1 - rank + seed).all())
            assert bool((total == 1 + 2 * seed).all())


@pytest.mark.parametrize("allowed", [True, False])
def test_two_islands_in_a_host_are_direct(job: Callable[..., Job], allowed: bool) -> None:
    if allowed and not _capability().startswith("direct over shm"):
        pytest.skip(f"no direct messages here: {_capability()}")
    made = job("gg")
    direct = {"HETCOMM_DIRECT": str(int(allowed)), "HETCOMM_DIRECT_BYTES": "0"}
    environments = [
        {**environment, **direct, "HETCOMM_ISLAND": f"island{rank}"}
        for rank, environment in enumerate(made.environments)
    ]
    values(replace(made, hosts=[made.hosts[0]] * 2, environments=environments), exchange)
