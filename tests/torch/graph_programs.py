"""Programs that record operations into graphs of a device's stream, and replay the graphs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from stream_programs import COUNT, closed, full, graph, on_device

import hetcomm


def replayed(rank: int, size: int) -> None:
    source, gathered, result = full(0), full(0, size * COUNT), full(0)
    parts, scattered = [full(0) for _ in range(size)], full(0)
    recorded, pending = graph(), full(rank)
    with closed():
        # Threads poll this operation during the recording, which must not be disturbed.
        before = dist.all_reduce(pending, async_op=True)
        with torch.Stream(device=source.device):
            recorded.capture_begin()
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
            recorded.capture_end()
    before.wait()
    assert bool((pending == size * (size - 1) / 2).all())
    for replay in range(4):
        source.fill_(rank + replay)
        recorded.replay()
        total = size * (size - 1) + 2 * size * replay
        assert bool((result == total + 1).all()), f"replay {replay}: {result}"
        assert bool((gathered == total).all()), f"replay {replay}: {gathered}"
        assert bool((scattered == size * (size - 1) / 2 + size * replay).all()), scattered
        assert [part[0].item() for part in parts] == [peer + replay for peer in range(size)]
        tensor = full(rank)
        dist.all_reduce(tensor)  # between replays, too
        assert bool((tensor == size * (size - 1) / 2).all())


def refused(rank: int, size: int, staged: bool) -> list[str]:
    texts = []
    tensor = full(1)
    if on_device():
        calls = [lambda: dist.isend(tensor, (rank + 1) % size)]
        calls += [lambda: dist.all_reduce(tensor)] if staged else []
        recorded = graph()
        torch.accelerator.synchronize()
        with torch.Stream(device=tensor.device):
            recorded.capture_begin()
            for call in calls:
                try:
                    call()
                    texts.append("accepted")
                except hetcomm.InvalidArgumentError as error:
                    texts.append(str(error))
            tensor.mul_(3)
            recorded.capture_end()
        recorded.replay()
        assert bool((tensor == 3).all())
        tensor.fill_(1)
    dist.all_reduce(tensor)
    assert bool((tensor == size).all())
    return texts
