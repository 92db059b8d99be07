"""CuPy arrays in the array API, and through torch, in the order of CuPy's streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("cupy", reason="needs CuPy: it is not installed")

import torch
import torch.distributed as dist
from ranks import Job, values
from ranks_of_arrays import run
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


@pytest.mark.parametrize("kinds", ["g", "gg", "gc"])
def test_streams_and_memory_of_cupy_are_honoured(tmp_path: Path, kinds: str, seed: int) -> None:
    """The programs that tests/arrays runs with a look-alike of CuPy."""
    names = [f"{os.getpid()}-{tmp_path.name}-{rank}" for rank in range(len(kinds))]
    kind = {
        "g": {"HETCOMM_VENDOR": "nvidia", "HETCOMM_DEVICE": "0"},
        "c": {"HETCOMM_VENDOR": "cpu"},
    }
    settings = [
        {**kind[letter], "HETCOMM_HOST_ID": name, "NCCL_HOSTID": name}
        for letter, name in zip(kinds, names, strict=True)
    ]
    printed = run(tmp_path, len(kinds), "arrays_of_cupy", seed, environments=settings)
    assert all("right" in one for one in printed), printed
