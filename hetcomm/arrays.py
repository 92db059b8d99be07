"""Differences between array libraries. Loads none of them."""

from __future__ import annotations

import operator
import sys
from contextlib import nullcontext
from typing import Any

from hetcomm import _core

Array = Any  # with the buffer protocol, DLPack or the CUDA array interface


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
    device: Any = getattr(array, "device", None)
    with device if hasattr(device, "__enter__") else nullcontext():  # CuPy's current one may differ
        return library.empty(shape, dtype=array.dtype)


def current_stream(array: Array) -> Any:
    """The stream with the work that fills the array: its library's current stream on its device,
    or the stream that the array names. Else the default stream."""
    library = _library(array)
    cuda: Any = getattr(library, "cuda", None)
    if hasattr(cuda, "get_current_stream"):
        return cuda.get_current_stream(array.device.id)  # CuPy
    if hasattr(array, "is_cuda") and array.is_cuda:
        return cuda.current_stream(array.device)  # torch
    if not hasattr(array, "__dlpack__"):
        described = getattr(array, "__cuda_array_interface__", None) or {}
        return described.get("stream") or 0
    return 0


def pointer(stream: Any) -> int:
    """The number of a stream of CuPy, torch or cuda.core, or of a number itself.

    Raises:
        InvalidArgumentError: it is no stream.
    """
    for name in ("ptr", "cuda_stream", "native_handle"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    if hasattr(stream, "__cuda_stream__"):  # (version of the protocol, number)
        return int(stream.__cuda_stream__()[1])
    try:
        return operator.index(stream)
    except TypeError:
        raise _core.InvalidArgumentError(
            "stream: expected a number or a stream of CuPy, torch or cuda.core; got a "
            f"{type(stream).__name__}"
        ) from None
