"""torch's process groups of a rank: hetcomm, its peer, and gloo for agreements."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import ranks
import torch
import torch.distributed as dist

import hetcomm  # noqa: F401

BOUND = timedelta(seconds=60)


class Groups:
    """Made by all ranks. device: of this rank's tensors; emulated vendors take CPU tensors for
    device memory."""

    def __init__(self, emulated: bool) -> None:
        rank, size, folder = ranks.place()
        self.rank, self.size, self.emulated = rank, size, emulated
        self.on_gpu = ranks.on_gpu() and not emulated
        self.device = torch.device("cuda", 0) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(0)
        store = dist.FileStore(str(folder / "torch"), size)
        dist.init_process_group("hetcomm", store=store, rank=rank, world_size=size, timeout=BOUND)
        self.gloo = dist.new_group(backend="gloo", timeout=BOUND)

    def synchronize(self) -> None:
        """Waits until this rank's device is idle, then for all ranks."""
        if self.on_gpu:
            torch.cuda.synchronize()
        dist.barrier(group=self.gloo)

    def finish(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def stream_seconds(self, call: Callable[[], object], calls: int) -> float:
        """Seconds that so many calls in a row take of the GPU's current stream."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.synchronize()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def largest(self, value: float) -> float:
        """The largest of all ranks' values."""
        agreed = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(agreed, dist.ReduceOp.MAX, group=self.gloo)
        return float(agreed)
