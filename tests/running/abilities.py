"""What this machine can do for the tests: each ability is probed once, at its first use.

A probe returns "" if the ability is there, else why not. A probe raises if it fails for a reason
that it does not expect: then nobody knows what the machine lacks, and the run fails. Probes are in
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
    """Probes abilities: why each is lacking, "" where it is there or its probe failed."""
    for name in names:
        with suppress(RuntimeError):
            lacking(name)
    return _lacking


def take(found: dict[str, str], failed: dict[str, str]) -> None:
    """What another process of this run has found."""
    _lacking.update(found)
    errors.update(failed)


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, with these variables besides."""
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def tool(name: str) -> str:
    """Why there is no such command; "" if there is."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return "" if shutil.which(name, path=path) else f"no {name} in PATH"


def module(name: str) -> str:
    """Why there is no such package; "" if there is."""
    spec = importlib.util.find_spec(name)  # a folder of that name is no module
    return "" if spec is not None and spec.origin is not None else f"{name} is not installed"
