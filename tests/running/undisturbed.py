"""Measurements that a busy machine may disturb."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

Measured = TypeVar("Measured")


def undisturbed(
    measure: Callable[[], Measured], good: Callable[[Measured], bool], times: int = 8
) -> Measured:
    """The first good measurement: a busy machine disturbs some measurements, but not all."""
    for _ in range(times):
        if good(measured := measure()):
            return measured
    pytest.fail(f"the last of {times} measurements: {measured}")
