"""Dtypes with little arithmetic in torch: their bytes arrive as they were sent."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from ranks import Job, values
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

NAMES = ["int4", "uint3", "bits8", "bits16", "float8_e8m0fnu", "float4_e2m1fn_x2"]
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]


def copied(rank: int, size: int) -> list[str]:
    """The operations that copy tensors: separate lists, slices, batches."""
    failures = []
    for dtype in DTYPES:
        bytes_each = torch.empty(0, dtype=dtype).element_size()

        def tensor(value: int, dtype: torch.dtype = dtype, width: int = bytes_each) -> Tensor:
            return torch.full((3 * width,), value, dtype=torch.uint8).view(dtype)

        def room(dtype: torch.dtype = dtype) -> list[Tensor]:
            return [torch.empty(3, dtype=dtype) for _ in range(size)]

        gathered, exchanged, scattered = room(), room(), tensor(0)
        dist.all_gather(gathered, tensor(rank + 1))
        dist.all_to_all(exchanged, [tensor(10 * rank + each) for each in range(size)])
        parts = [tensor(each + 7) for each in range(size)]
        dist.scatter(scattered, parts if rank == 0 else None, 0)
        wholes = [torch.empty(3 * size, dtype=dtype) for _ in range(2)]
        with _coalescing_manager(dist.group.WORLD, torch.device("cpu")):
            for whole in wholes:
                dist.all_gather_into_tensor(whole, tensor(rank + 1))
        rows = torch.full((3, 2 * bytes_each), rank + 5, dtype=torch.uint8).view(dtype)
        dist.broadcast(rows[:, 0], size - 1)
        column = torch.full((3, bytes_each), size + 4, dtype=torch.uint8)
        beside = torch.full((3, bytes_each), rank + 5, dtype=torch.uint8)
        for name, got, want in [
            ("all_gather", gathered, [tensor(each + 1) for each in range(size)]),
            ("all_to_all", exchanged, [tensor(10 * each + rank) for each in range(size)]),
            ("scatter", [scattered], [tensor(rank + 7)]),
            ("a batch", wholes[1].split(3), [tensor(each + 1) for each in range(size)]),
            ("broadcast", [rows], [torch.cat([column, beside], 1)]),
        ]:
            pairs = zip(got, want, strict=True)
            if not all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs):
                failures.append(f"rank {rank}: {name} of {dtype}")
    return failures


def test_bytes_arrive_as_they_were_sent(job: Callable[..., Job]) -> None:
    assert values(job("aab"), copied) == [[], [], []]
