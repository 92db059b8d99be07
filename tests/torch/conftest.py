"""Jobs in every layout of ranks over hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes a Job from one letter per rank: ranks with the same letter share a host."""
    made = 0

    def make(hosts: str, **settings: Any) -> Job:
        nonlocal made
        made += 1
        folder = tmp_path / f"job{made}"
        folder.mkdir()
        names = [f"{os.getpid()}-{tmp_path.name}-{host}" for host in hosts]
        return Job(hosts=names, folder=folder, **settings)

    yield make
