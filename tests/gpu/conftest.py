"""Tests on a real GPU: `pytest tests/gpu`.

Several ranks share one GPU. Each has a host identity of its own for hetcomm and for NCCL, which
otherwise allows one rank per GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Job


def environment(letter: str, name: str) -> dict[str, str]:
    """The environment of a rank on the GPU (g) or on the CPU (c)."""
    if letter == "c":
        return {"HETCOMM_VENDOR": "cpu"}
    return {"HETCOMM_VENDOR": "", "HETCOMM_DEVICE": "0", "NCCL_HOSTID": name}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes a Job from one letter per rank, g for the GPU and c for the CPU. Every rank is a
    host."""
    made = 0

    def make(kinds: str, **settings: Any) -> Job:
        nonlocal made
        made += 1
        folder = tmp_path / f"job{made}"
        folder.mkdir()
        names = [f"{os.getpid()}-{tmp_path.name}-{rank}" for rank in range(len(kinds))]
        environments = [environment(kind, name) for kind, name in zip(kinds, names, strict=True)]
        return Job(hosts=names, folder=folder, environments=environments, **settings)

    yield make


@pytest.fixture(scope="session")
def seed() -> int:
    return int(os.environ.get("HETCOMM_TEST_SEED") or 1)
