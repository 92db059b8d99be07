"""CuPy arrays take part through torch, in the order of CuPy's stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytest.importorskip("cupy", reason="needs CuPy: it is not installed")

import torch
import torch.distributed as dist
from ranks import Job, values
from test_gpu_collectives import home


def arrays(rank: int, size: int) -> None:
    if home() == "cpu":
        for _ in range(2):
            dist.all_reduce(torch.full((1000,), float(rank + 1)))
        return
    import cupy

    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        array = cupy.full(1000, rank + 1, dtype=cupy.float32)
        dist.all_reduce(torch.as_tensor(array, device="cuda"))  # the same memory
        assert float(array.sum()) == 1000 * size * (size + 1) / 2
        again = cupy.full(1000, rank + 1, dtype=cupy.float32)
        dist.all_reduce(torch.from_dlpack(again))
        assert float(again.sum()) == 1000 * size * (size + 1) / 2


@pytest.mark.parametrize("kinds", ["g", "gg", "gc"])
def test_cupy_arrays_are_accepted(job: Callable[..., Job], kinds: str) -> None:
    values(job(kinds), arrays)
