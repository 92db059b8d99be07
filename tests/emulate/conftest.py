"""Fixtures of the tests of emulated clusters."""

import io
import sys

import abilities
import pytest
from emulated import PROGRAMS, RunProgram

from hetcomm.emulate import Cluster, Result, run


@pytest.fixture
def run_program() -> RunProgram:
    """Runs a file of programs/ on every rank; returns the result and the prefixed lines."""

    abilities.need("namespaces")

    def run_program(
        cluster: Cluster, program: str, *arguments: object, **options: object
    ) -> tuple[Result, list[str]]:
        output = io.StringIO()
        command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
        options.setdefault("timeout", 150)
        result = run(cluster, command, stdout=output, **options)  # type: ignore[arg-type]
        return result, output.getvalue().splitlines()

    return run_program
