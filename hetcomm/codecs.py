"""The codec of collectives, and error feedback. docs/codecs.md has the codecs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hetcomm import _core


class Feedback:
    """Error feedback: a lossy codec adds to each tensor what it lost of the tensor before.

    A rank keeps float32 residuals of the segments that it encodes. Two calls with one key belong to
    one tensor. Source: Karimireddy and others, arXiv 1901.09847.
    """

    def __init__(self) -> None:
        self._feedback = _core.Feedback()

    def views(self) -> dict[str, Any]:
        """The residuals of this rank by key: float32 arrays over their own host memory.

        The next operation may move residuals to the memory of a device that encodes, so ask again
        after it.

        Raises:
            hetcomm.TimeoutError: an operation has used a residual for a minute.
        """
        import numpy as np

        return {key: np.asarray(residual) for key, residual in self._feedback.residuals().items()}

    def add(self, key: str, values: Any) -> None:
        """Sets a residual to float32 values of shape (elements of the largest buffer,).

        Raises:
            hetcomm.InvalidArgumentError: other values, or a residual of another size.
        """
        import numpy as np

        given = np.asarray(values)
        if given.dtype != np.float32:
            raise _core.InvalidArgumentError(
                f'feedback "{key}": expected float32, got {given.dtype}; pass what state_dict() '
                "returned"
            )
        self._feedback.set(key, np.ascontiguousarray(given))

    def state_dict(self) -> dict[str, Any]:
        """A copy of views(): what load_state_dict() of the same rank restores."""
        return {key: view.copy() for key, view in self.views().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces all residuals by those of state_dict() of the same rank.

        Raises:
            hetcomm.InvalidArgumentError: a value is no float32 array. Some residuals may be set.
        """
        self.clear()
        for key, values in state.items():
            self.add(key, values)

    def clear(self) -> None:
        """Forgets all residuals."""
        self._feedback.clear()

    def bytes(self) -> int:
        """Bytes that the residuals of this rank may take: 4 for each element of each tensor."""
        return self._feedback.bytes()


def codec(
    name: str, *, feedback: Feedback | None = None, key: str = ""
) -> AbstractContextManager[None]:
    """Collectives that this thread starts inside have this codec instead of their group's.

        with hetcomm.codec("int8", feedback=feedback, key="layer 3"):
            torch.distributed.all_reduce(gradients)

    All ranks name the same codec. Barriers and messages between two ranks have none. Calls that
    other threads start keep the codec of their group: so do those of autograd's threads on GPUs,
    and those that torch's coalescing manager starts when it ends. hetcomm.hooks serve DDP and
    fully_shard.

    Args:
        name: "none", "auto", "lossless", or a lossy codec, such as "int8", "int4:128" or
            "int4:32:bf16". A lossy codec is for sums, averages and all_gather of floating-point
            elements. Or a codec for each level: "cluster=int8,host=bf16" for groups of several
            hosts, and for groups of several islands on one host.
        feedback: keeps what the codec loses of sums, for the next call with the same key. Without
            it the loss is gone.
        key: names the tensor. Calls inside are numbered, so a block with several calls needs one
            key.

    Raises:
        hetcomm.InvalidArgumentError: there is no such codec. A call raises the same error for
            other dtypes and operations, and for a key whose tensor had another size.
    """
    if not isinstance(name, str):
        raise _core.InvalidArgumentError(
            f'codec: expected a name, such as "int8"; got a {type(name).__name__}'
        )
    return _inside(_core.CallCodec(name, None if feedback is None else feedback._feedback, key))


@contextmanager
def _inside(codec: _core.CallCodec) -> Iterator[None]:
    before = _core.CallCodec.swap(codec)
    try:
        yield
    finally:
        _core.CallCodec.swap(before)
