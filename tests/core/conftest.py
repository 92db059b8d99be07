"""Fixtures of the tests of the core."""

from __future__ import annotations

from pathlib import Path

import abilities
import kernel_shim
import machines
import pytest

import hetcomm
from hetcomm._vendors import library_variables, vendors


@pytest.fixture
def emulated_vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries of all emulated vendors, for ranks that are threads of this process."""
    folder = Path(hetcomm.__file__).parent
    for vendor in vendors():
        for variable in library_variables(vendor):
            monkeypatch.setenv(variable, str(folder / f"libhetcomm_emulated_{vendor}.so"))


@pytest.fixture
def make(tmp_path: Path) -> machines.Make:
    """Makes hosts with sysfs trees of their own."""
    made: list[machines.Recorded] = []

    def record(kind: str, **facts: object) -> machines.Recorded:
        number = len(made) + 1
        made.append(machines.KINDS[kind](tmp_path / f"host{number}", number, **facts))
        return made[-1]

    return record


@pytest.fixture(scope="session")
def shim() -> Path:
    """All device kernels as a library for this processor."""
    abilities.need("compiler")
    return kernel_shim.build()


@pytest.fixture(scope="session")
def run(shim: Path) -> kernel_shim.Run:
    """Runs a launch of a device kernel on this processor."""
    return kernel_shim.runner(shim)
