"""Jobs in every layout of ranks over hosts, and one seed for all random inputs."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Job

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]

SEED = int(os.environ.get("HETCOMM_TEST_SEED") or random.SystemRandom().randrange(2**31))


def pytest_report_header() -> str:
    return f"hetcomm torch tests: HETCOMM_TEST_SEED={SEED}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "tests/torch" in report.nodeid:
        report.sections.append(("seed", f"repeat with HETCOMM_TEST_SEED={SEED}"))


@pytest.fixture(scope="session")
def seed() -> int:
    return SEED


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
