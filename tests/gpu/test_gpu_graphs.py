"""CUDA graphs capture operations that NCCL carries alone. All other operations raise an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from ranks import Job, values
from test_gpu_collectives import home

import hetcomm


def captured(rank: int, size: int) -> None:
    source = torch.zeros(1000, device="cuda")
    gathered = torch.zeros(1000 * size, device="cuda")
    result = torch.zeros(1000, device="cuda")
    dist.all_reduce(source)  # NCCL connects at first use, and a graph cannot record that
    dist.all_gather_into_tensor(gathered, source)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = source * 2
        dist.all_reduce(doubled)
        dist.all_gather_into_tensor(gathered, doubled)
        result.copy_(doubled + 1)
    for replay in range(5):
        source.fill_(rank + replay)
        graph.replay()
        total = size * (size - 1) + 2 * size * replay
        assert bool((result == total + 1).all()), f"replay {replay}"
        assert bool((gathered == total).all()), f"replay {replay}"
    tensor = torch.ones(5, device="cuda")
    dist.all_reduce(tensor)  # and again without a graph
    assert bool((tensor == size).all())


@pytest.mark.parametrize("kinds", ["g", "gg"])
def test_native_operations_are_captured(job: Callable[..., Job], kinds: str) -> None:
    values(job(kinds), captured)


def refused(rank: int, size: int) -> str:
    if home() == "cpu":
        return ""
    tensor = torch.ones(5, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                dist.all_reduce(tensor)
            finally:
                graph.capture_end()
    except hetcomm.Error as error:
        return str(error)
    return "accepted"


def test_staged_operations_are_rejected(job: Callable[..., Job]) -> None:
    text = values(job("gc", group_timeout=30), refused)[0]
    assert "graph" in text, text
