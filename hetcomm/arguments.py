"""Checks and conversions of users' arguments."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from numbers import Integral, Number
from typing import Any

from hetcomm import _core
from hetcomm.arrays import Array

TAGS = 1 << 16  # of users' messages; the group itself uses higher ones
_MOST = (1 << 31) - 1
_MOST_ROWS = 1 << 62


def check_tag(tag: int) -> None:
    """Raises InvalidArgumentError for a tag that users may not give."""
    if not 0 <= whole_number("tag", tag) < TAGS:
        raise _core.InvalidArgumentError(f"tag: expected 0 to {TAGS - 1}, got {tag}")


def rank_number(name: str, given: Any) -> int:
    """A whole number, cut to those of the core, which has no rank beyond. Raises
    InvalidArgumentError."""
    number = given if type(given) is int else whole_number(name, given)
    return number if -_MOST <= number <= _MOST else -_MOST if number < 0 else _MOST


def whole_number(name: str, given: Any) -> int:
    """Raises InvalidArgumentError."""
    try:
        return operator.index(given)
    except TypeError:
        raise _core.InvalidArgumentError(
            f"{name}: expected a whole number, got {_shown(given)}"
        ) from None


def check_port(port: int) -> None:
    """Raises InvalidArgumentError for a number that is no TCP port; 0 is any."""
    if not 0 <= whole_number("port", port) < 1 << 16:
        raise _core.InvalidArgumentError(f"port: expected 0 to 65535, got {port}")


def real_number(name: str, given: Any) -> float:
    """Raises InvalidArgumentError."""
    if type(given) is float:
        return given
    try:
        if not isinstance(given, str):
            return float(given)
    except (TypeError, ValueError):
        pass
    raise _core.InvalidArgumentError(f"{name}: expected a number, got {_shown(given)}")


def timeout_of(given: Any) -> float | None:
    """Seconds, or None. Raises InvalidArgumentError, also for negative ones and NaN."""
    if given is None:
        return None
    if hasattr(given, "total_seconds"):
        raise _core.InvalidArgumentError(
            f"timeout: expected seconds, got {_shown(given)}; pass its total_seconds()"
        )
    seconds: float = _core.timeout(real_number("timeout", given))
    return seconds


def _shown(given: object) -> str:
    return f"a {type(given).__name__}, {reprlib.repr(given)}"


def split_rows(sizes: Sequence[int] | None) -> list[int]:
    """The rows of each part; an empty list for even parts. Raises InvalidArgumentError."""
    if sizes is None:
        return []
    try:
        return [min(max(operator.index(size), -1), _MOST_ROWS) for size in sizes]
    except TypeError as error:
        raise _core.InvalidArgumentError(
            f"split sizes: expected a whole number for each rank, got {sizes!r} ({error}); give "
            "their rows along the first axis"
        ) from None


def out_and_root(out: Any, root: Any) -> tuple[Array, int]:
    """`out` and the root, given in either order. Raises InvalidArgumentError."""
    if isinstance(out, Integral):
        out, root = root, out
    if isinstance(root, Integral | None) and not isinstance(out, Number):
        return out, 0 if root is None else whole_number("root", root)
    raise _core.InvalidArgumentError(
        "root and `out`: expected a whole number and an array, or None; got "
        f"{type(out).__name__} and {type(root).__name__}"
    )
