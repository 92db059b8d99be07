"""Refusals of the planner: what was expected, what came, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

from hetcomm import _core


def refuse(what: str, expected: str, got: object, remedy: str) -> NoReturn:
    """Raises hetcomm.InvalidArgumentError."""
    raise _core.InvalidArgumentError(f"{what}: expected {expected}, got {got}; {remedy}")


def positive(what: str, value: Any, remedy: str = "correct it") -> float:
    """The number. Raises hetcomm.InvalidArgumentError if it is not finite and above 0."""
    if not _is_finite(value) or value <= 0:
        refuse(what, "a finite number above 0", value, remedy)
    return float(value)


def not_negative(what: str, value: Any, remedy: str = "correct it") -> float:
    """The number. Raises hetcomm.InvalidArgumentError if it is not finite or is below 0."""
    if not _is_finite(value) or value < 0:
        refuse(what, "a finite number of at least 0", value, remedy)
    return float(value)


def _is_finite(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond all floats
        return False


def one_of(what: str, value: Any, known: Iterable[str]) -> None:
    """Raises hetcomm.InvalidArgumentError unless the value is known."""
    if value not in known:
        refuse(what, f"one of {', '.join(known)}", value, "choose one of these")


def whole(what: str, value: Any, least: int) -> None:
    """Raises hetcomm.InvalidArgumentError unless value is an int of at least this."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        refuse(what, f"a whole number of at least {least}", value, "correct it")


def divisible(what: str, value: int, degree: int) -> None:
    """Raises hetcomm.InvalidArgumentError unless the degree divides the value."""
    if degree < 1 or value % degree:
        refuse(what, f"a divisor of {value}", degree, "change it")
