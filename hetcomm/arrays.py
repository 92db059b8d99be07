"""Differences between array libraries. Loads none of them."""

from __future__ import annotations

import operator
import sys
from contextlib import nullcontext
from functools import cache, lru_cache
from typing import Any

from hetcomm import _core

Array = Any  # with the buffer protocol, DLPack or the CUDA array interface


def library(array: Array) -> Any:
    """The module of an array; None for an object of no known library."""
    for kind in type(array).__mro__:  # the class may be the user's
        found = sys.modules.get(kind.__module__.partition(".")[0])
        if hasattr(found, "empty"):
            return found
    return None


def shape(array: Array) -> tuple[int, ...]:
    """Raises InvalidArgumentError for an object without shape."""
    check_plain(array)
    if not hasattr(array, "shape"):
        raise _no_array(array)
    return tuple(array.shape)


def check_plain(array: Array) -> None:
    """Raises InvalidArgumentError for a tensor that is not dense, and for a masked array."""
    if is_tensor(array):
        if array.layout is _strided_layout() and not array.is_nested:
            return
        raise _core.InvalidArgumentError(
            f"expected a dense tensor, got {'a nested' if array.is_nested else 'a'} one of layout "
            f"{array.layout}; pass its to_dense() or its parts"
        )
    kind: Any = type(array)
    if _is_masked(kind):
        raise _core.InvalidArgumentError(
            f"expected an array of which all elements count, got a {kind.__name__}; pass its "
            "filled() or its data"
        )


def is_tensor(array: object) -> bool:
    """Whether an object is a tensor of torch."""
    kind: Any = type(array)
    return _has_layout(kind)


# By class, because a look-up that fails takes longer than the rest of a small call.
@lru_cache
def _has_layout(kind: type) -> bool:
    return hasattr(kind, "is_contiguous") and hasattr(kind, "is_nested")


@lru_cache
def _is_masked(kind: type) -> bool:
    return hasattr(kind, "mask") and hasattr(kind, "filled")


@cache
def _strided_layout() -> Any:
    return sys.modules["torch"].strided


def _no_array(given: object) -> Exception:
    found: Exception = _core.InvalidArgumentError(
        f"expected an array of NumPy, CuPy or torch, or `out`; got a {type(given).__name__}"
    )
    return found


def empty(array: Array, shape: tuple[int, ...]) -> Array:
    """A new array like `array`, of another shape. Its contents are arbitrary."""
    found = library(array)
    if not hasattr(found, "empty"):
        raise _no_array(array)
    device: Any = getattr(array, "device", None)
    try:
        if hasattr(array, "new_empty"):
            return array.new_empty(shape)  # torch
        # CuPy's current device may differ.
        with device if hasattr(device, "__enter__") else nullcontext():
            return found.empty(shape, dtype=array.dtype)
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        raise _core.InvalidArgumentError(
            f"expected an array that can have a result like it of shape {shape}, got a "
            f"{type(array).__name__}: {why}; pass a plain array, or `out`"
        ) from error


def current_stream(array: Array) -> Any:
    """The stream with the work that fills the array: its library's current stream on its device,
    or the stream that the array names. Else the default stream."""
    cuda: Any = getattr(library(array), "cuda", None)
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
