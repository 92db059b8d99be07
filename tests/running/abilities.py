"""The abilities of this machine that tests need. Each is probed once, at its first use.

A probe returns "" if the ability is there, else the reason. A probe raises an exception if it fails
for an unexpected reason. Then the lacking ability is unknown, and the run fails. Probes are in
kernel_abilities.py and installed_abilities.py.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

probes: dict[str, Callable[[], str]] = {}
_lacking: dict[str, str] = {}
errors: dict[str, str] = {}  # of probes


def probe(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def register(function: Callable[[], str]) -> Callable[[], str]:
        probes[name] = function
        return function

    return register


def lacking(name: str) -> str:
    """Why this machine lacks the ability; "" if it has the ability. Raises if its probe failed."""
    if name not in probes:
        raise LookupError(f"expected an ability of {sorted(probes)}; got {name!r}")
    if name not in _lacking:
        _lacking[name] = ""
        try:
            _lacking[name] = probes[name]()
        except Exception:
            errors[name] = f"the probe of {name!r} failed: {traceback.format_exc()}"
    if name in errors:
        raise RuntimeError(errors[name])
    return _lacking[name]


def need(name: str) -> None:
    """Skips the test, or at import the whole module, unless this machine has the ability."""
    if why := lacking(name):
        pytest.skip(f"needs {name}: {why}", allow_module_level=True)


def survey(names: Iterable[str] = probes) -> dict[str, str]:
    """Probes abilities. Returns the reason for each lacking one; "" if it is there or its probe
    failed."""
    for name in names:
        with suppress(RuntimeError):
            lacking(name)
    return _lacking


def take(found: dict[str, str], failed: dict[str, str]) -> None:
    """Takes the results of another process of this run."""
    _lacking.update(found)
    errors.update(failed)


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a separate process, with these additional variables."""
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def tool(name: str) -> str:
    """Why the command is missing; "" if it is there."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return "" if shutil.which(name, path=path) else f"no {name} in PATH"


def module(name: str) -> str:
    """Why the package is missing; "" if it is there."""
    spec = importlib.util.find_spec(name)  # a folder of that name is no module
    return "" if spec is not None and spec.origin is not None else f"{name} is not installed"
