"""Operations recorded into graphs of an emulated device's stream.

Operations that a native library carries alone are replayed. Operations that the host moves are
rejected, and the group stays usable.
"""

from __future__ import annotations

from collections.abc import Callable

import emulated_device
import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from test_streams import COUNT, _job, closed, full, on_device

import hetcomm

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


def replayed(rank: int, size: int) -> None:
    source, gathered, result = full(0), full(0, size * COUNT), full(0)
    parts, scattered = [full(0) for _ in range(size)], full(0)
    graph, pending = torch.accelerator.Graph(), full(rank)
    with closed():
        # Threads poll this operation during the recording, which must not be disturbed.
        before = dist.all_reduce(pending, async_op=True)
        with torch.Stream(device=source.device):
            graph.capture_begin()
            doubled = torch.empty_like(source)
            doubled.copy_(source)
            doubled.mul_(2)
            dist.all_reduce(doubled)
            dist.all_gather_into_tensor(gathered, doubled)
            dist.all_gather(parts, source)  # copied out of one buffer on a stream of the group
            work = dist.reduce_scatter(scattered, [source] * size, async_op=True)
            full(-7, size * COUNT)  # must not get the memory of the inputs' common buffer
            work.wait()
            result.copy_(doubled)
            result.add_(1)
            graph.capture_end()
    before.wait()
    assert bool((pending == size * (size - 1) / 2).all())
    for replay in range(4):
        source.fill_(rank + replay)
        graph.replay()
        total = size * (size - 1) + 2 * size * replay
        assert bool((result == total + 1).all()), f"replay {replay}: {result}"
        assert bool((gathered == total).all()), f"replay {replay}: {gathered}"
        assert bool((scattered == size * (size - 1) / 2 + size * replay).all()), scattered
        assert [part[0].item() for part in parts] == [peer + replay for peer in range(size)]
        tensor = full(rank)
        dist.all_reduce(tensor)  # between replays, too
        assert bool((tensor == size * (size - 1) / 2).all())


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


def refused(rank: int, size: int, staged: bool) -> list[str]:
    texts = []
    tensor = full(1)
    if on_device():
        calls = [lambda: dist.isend(tensor, (rank + 1) % size)]
        calls += [lambda: dist.all_reduce(tensor)] if staged else []
        graph = torch.accelerator.Graph()
        torch.accelerator.synchronize()
        with torch.Stream(device=tensor.device):
            graph.capture_begin()
            for call in calls:
                try:
                    call()
                    texts.append("accepted")
                except hetcomm.InvalidArgumentError as error:
                    texts.append(str(error))
            tensor.mul_(3)
            graph.capture_end()
        graph.replay()
        assert bool((tensor == 3).all())
        tensor.fill_(1)
    dist.all_reduce(tensor)
    assert bool((tensor == size).all())
    return texts


@pytest.mark.parametrize(("hosts", "vendors"), [("aa", "nn"), ("ab", "nc"), ("ab", "na")])
def test_host_staged_operations_are_rejected_and_the_group_continues(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    for texts in values(_job(job, hosts, vendors), refused, vendors != "nn"):
        for text in texts:
            assert "while a graph is being recorded" in text, text
            assert "leave it out of the graph" in text, text
