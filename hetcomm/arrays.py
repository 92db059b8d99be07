"""Differences between array libraries. Loads none of them."""

from __future__ import annotations

import sys
from typing import Any

from hetcomm import _core

Array = Any  # with the buffer protocol, such as NumPy's, or with DLPack


def _library(array: Array) -> Any:
    for kind in type(array).__mro__:  # the class may be the user's
        found = sys.modules.get(kind.__module__.partition(".")[0])
        if hasattr(found, "empty"):
            return found
    return None


def shape(array: Array) -> tuple[int, ...]:
    """Raises InvalidArgumentError for an object without shape."""
    if not hasattr(array, "shape"):
        raise _no_array(array)
    return tuple(array.shape)


def _no_array(given: object) -> Exception:
    found: Exception = _core.InvalidArgumentError(
        f"expected an array of NumPy, CuPy or torch, or `out`; got a {type(given).__name__}"
    )
    return found


def empty(array: Array, shape: tuple[int, ...]) -> Array:
    """A new array like `array`, of another shape. Its contents are arbitrary."""
    library = _library(array)
    if not hasattr(library, "empty"):
        raise _no_array(array)
    if hasattr(array, "new_empty"):
        return array.new_empty(shape)  # torch
    return library.empty(shape, dtype=array.dtype)


def current_stream(array: Array) -> Any:
    """The current stream of the array's library; without streams, the default stream."""
    library = _library(array)
    cuda: Any = getattr(library, "cuda", None)
    if hasattr(cuda, "get_current_stream"):
        return cuda.get_current_stream()  # CuPy
    if hasattr(array, "is_cuda") and array.is_cuda:
        return cuda.current_stream(array.device)  # torch
    return 0


def pointer(stream: Any) -> int:
    """The number of a stream of CuPy or torch, or of a number itself."""
    for name in ("ptr", "cuda_stream"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    return int(stream)
