"""Checks and conversions of users' arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral, Number
from typing import Any

from hetcomm import _core
from hetcomm.arrays import Array

TAGS = 1 << 16  # of users' messages; the group itself uses higher ones


def check_tag(tag: int) -> None:
    """Raises InvalidArgumentError for a tag that users may not give."""
    if not 0 <= tag < TAGS:
        raise _core.InvalidArgumentError(f"tag: expected 0 to {TAGS - 1}, got {tag}")


def split_rows(sizes: Sequence[int] | None) -> list[int]:
    """The rows of each part; an empty list for even parts. Raises InvalidArgumentError."""
    if sizes is None:
        return []
    try:
        return [operator.index(size) for size in sizes]
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
        return out, 0 if root is None else operator.index(root)
    raise _core.InvalidArgumentError(
        "root and `out`: expected a whole number and an array, or None; got "
        f"{type(out).__name__} and {type(root).__name__}"
    )
