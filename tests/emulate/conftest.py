"""Fixtures of the tests of emulated clusters."""

import io
import sys

import pytest
from emulated import PROGRAMS, Play, two_hosts

from hetcomm.emulate import Cluster, ClusterError, Result, run


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where the kernel forbids namespaces, and only there."""
    try:
        run(two_hosts(), ["true"], stdout=io.StringIO(), timeout=30)
    except ClusterError as error:
        if error.key != "namespaces" or "EPERM" not in error.got:
            raise
        pytest.skip(f"this machine forbids namespaces: {error}")


@pytest.fixture
def play(namespaces: None) -> Play:
    """Runs a file of programs/ on every rank; returns the result and the prefixed lines."""

    def play(
        cluster: Cluster, program: str, *arguments: object, **options: object
    ) -> tuple[Result, list[str]]:
        output = io.StringIO()
        command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
        options.setdefault("timeout", 60)
        result = run(cluster, command, stdout=output, **options)  # type: ignore[arg-type]
        return result, output.getvalue().splitlines()

    return play
