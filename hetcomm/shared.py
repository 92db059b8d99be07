"""Arrays that all ranks of a host can read. Collectives on them copy less."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from typing import Any

from hetcomm import _core

_MOST_EMPTY = 1 << 48  # elements, times any item's size below 2^63


def shared_empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """Zeros in a shared allocation: a NumPy array, or a tensor if `dtype` is torch's.

    Ranks of one host read such arrays in place. A call does so if all its buffers on all ranks of
    the host are shared allocations, or parts of them. Ranks may use different parts. Any
    communicator or process group of this process can use the array. The last reference to the array
    frees the memory. A forked process shares the memory with its parent.

    Raises:
        InvalidArgumentError: the shape or the dtype is invalid.
        VendorError: memory is exhausted.
    """
    sizes = _sizes(shape)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        if math.prod(sizes) == 0:
            return torch.empty(sizes, dtype=dtype)
        memory = _core.SharedMemory(math.prod(sizes) * dtype.itemsize)
        return torch.frombuffer(memory, dtype=dtype).view(sizes)
    try:
        import numpy as np
    except ImportError:
        raise _core.InvalidArgumentError(
            "expected NumPy or a dtype of torch; pip install numpy"
        ) from None
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise _core.InvalidArgumentError(f"dtype: {error}") from None
    if kind.hasobject or kind.itemsize == 0:
        raise _core.InvalidArgumentError(f"dtype: expected numbers; got {kind}")
    if math.prod(sizes) == 0:
        return np.empty(sizes, kind)
    memory = _core.SharedMemory(math.prod(sizes) * kind.itemsize)
    return np.frombuffer(memory, kind).reshape(sizes)


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        sizes = (shape,) if hasattr(shape, "__index__") else tuple(shape)
        sizes = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise _core.InvalidArgumentError(
            f"shape: expected an integer or several; got {shape!r}"
        ) from None
    if any(size < 0 for size in sizes):
        raise _core.InvalidArgumentError(f"shape: expected sizes of at least 0; got {sizes}")
    # Empty arrays need no memory, but have a bound too.
    if math.prod(sizes) == 0 and math.prod(max(size, 1) for size in sizes) > _MOST_EMPTY:
        raise _core.InvalidArgumentError(f"shape: expected smaller sizes beside 0; got {sizes}")
    return sizes
