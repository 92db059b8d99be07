"""Operations captured into graphs of an emulated device's stream.

Operations that a native library carries alone are replayed. Operations that the host moves are
rejected, and the group stays usable.
"""

from __future__ import annotations

from collections.abc import Callable

import emulated_device
import pytest
import torch
import torch.distributed as dist
from graph_programs import refused, replayed
from ranks import Job, values
from stream_programs import full
from test_streams import _job

pytestmark = [
    *emulated_device.needed,
    pytest.mark.skipif(
        not hasattr(torch.accelerator, "Graph"),
        reason="this torch records no graphs of devices by extension",
    ),
]


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    emulated_device.build()


@pytest.mark.parametrize(("hosts", "vendors"), [("a", "n"), ("aa", "nn"), ("aa", "aa")])
def test_native_operations_are_replayed(job: Callable[..., Job], hosts: str, vendors: str) -> None:
    values(_job(job, hosts, vendors), replayed)


def scaled(rank: int, size: int) -> None:
    """A kernel of hetcomm alone: a rank without peers scales its own tensor."""
    tensor, graph = full(2), torch.accelerator.Graph()
    torch.accelerator.synchronize()
    with torch.Stream(device=tensor.device):
        graph.capture_begin()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(3.0))
        graph.capture_end()
    for replay in range(3):
        graph.replay()
        torch.accelerator.synchronize()
        assert bool((tensor == 2 * 3 ** (replay + 1)).all()), f"replay {replay}: {tensor}"


def test_kernels_are_replayed(job: Callable[..., Job]) -> None:
    values(_job(job, "a", "n"), scaled)


@pytest.mark.parametrize(("hosts", "vendors"), [("aa", "nn"), ("ab", "nc"), ("ab", "na")])
def test_host_staged_operations_are_rejected_and_the_group_continues(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    for texts in values(_job(job, hosts, vendors), refused, vendors != "nn"):
        for text in texts:
            assert "while a graph is being captured" in text, text
            assert "leave it out of the graph" in text, text
