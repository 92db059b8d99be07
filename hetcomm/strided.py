"""Host arrays that are not C-contiguous travel as contiguous copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetcomm import _core, arrays
from hetcomm.arrays import Array

WriteBack = Callable[[], None]


def packed(array: Array, out: Array) -> tuple[Array, Array, WriteBack | None]:
    """Returns C-contiguous memory for both arrays, and a function that copies the result to `out`
    after the call, if necessary. Arrays of unknown libraries stay as they are.

    Raises:
        InvalidArgumentError: `out` is not writable; or an array is not plain, or has too little
            memory.
    """
    given = array if is_packed(array) else _copy(array)
    if out is array:
        if given is array:
            return array, out, None
        _check_writable(out)
        return given, given, lambda: _assign(out, given)
    if is_packed(out):
        return given, out, None
    _check_writable(out)
    result = arrays.empty(out, arrays.shape(out))
    return given, result, lambda: _assign(out, result)


def is_packed(array: Array) -> bool:
    """Whether an array needs no copy. True for None, and for arrays of unknown libraries.

    Raises:
        InvalidArgumentError: the array is not plain.
    """
    arrays.check_plain(array)
    if arrays.is_tensor(array):  # its memory may hold negated numbers
        return bool(array.is_contiguous() and not array.is_conj() and not array.is_neg())
    return bool(getattr(getattr(array, "flags", None), "c_contiguous", True))


def _copy(array: Array) -> Array:
    _check_storage(array)
    copied = arrays.empty(array, arrays.shape(array))
    _assign(copied, array)
    return copied


def _assign(target: Array, source: Array) -> None:
    if hasattr(target, "copy_"):
        # As torch's own collectives: also into parameters, and tensors of inference mode.
        with arrays.library(target).inference_mode():
            target.copy_(source)
    else:
        target[...] = source


def _check_storage(array: Array) -> None:
    """torch itself would read and write beyond a storage that was freed or cut."""
    if not hasattr(array, "untyped_storage") or array.numel() == 0:
        return
    last = array.storage_offset()
    last += sum(step * (size - 1) for step, size in zip(array.stride(), array.shape, strict=True))
    needed, held = (last + 1) * array.element_size(), array.untyped_storage().nbytes()
    if held < needed:
        raise _core.InvalidArgumentError(
            f"expected a tensor in a storage of at least {needed} bytes, got one of {held}; resize "
            "it, because it was freed or cut"
        )


def _check_writable(array: Array) -> None:
    flags: Any = getattr(array, "flags", None)
    if flags is not None and not flags.writeable:
        raise _core.InvalidArgumentError(
            "output: expected a writable array, got one that is not; pass a copy"
        )
    _check_storage(array)
    counts_elements = hasattr(array, "stride")  # torch; NumPy counts bytes
    steps = array.stride() if counts_elements else array.strides
    last = 0 if counts_elements else array.itemsize - 1  # the reach of the dimensions so far
    for step, size in sorted(zip(map(abs, steps), arrays.shape(array), strict=True)):
        if size <= 1:
            continue
        if step <= last:
            raise _core.InvalidArgumentError(
                "output: expected an array whose elements have memory of their own, got one of "
                f"shape {arrays.shape(array)} and strides {tuple(steps)}; pass a copy"
            )
        last += step * (size - 1)
