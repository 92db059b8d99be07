"""The handle of an operation of the array API."""

from __future__ import annotations

from hetcomm import _core
from hetcomm.arrays import Array


class Work:
    """An operation under way. Its arrays stay alive, and must not be touched, until it is over."""

    def __init__(self, work: _core.Work, result: Array, stream: int | None) -> None:
        self._work, self._result, self._stream = work, result, stream

    def done(self) -> bool:
        """Whether it is over, also by a failure, which wait() raises."""
        return bool(self._work.done())

    def where(self) -> str:
        """What it waits for at the moment: the steps under way, in words."""
        return str(self._work.where())

    def wait(self, timeout: float | None = None) -> Array:
        """The array with the result, once it is there.

        Args:
            timeout: seconds; the operation's own if None. The operation goes on after it.
                With arrays of a device, the stream of the call waits and the host goes on at once,
                unless a timeout is given.

        Raises:
            hetcomm.Error: the operation failed; TimeoutError: it is not over yet.
        """
        if self._stream is not None and timeout is None:
            self._work.order(self._stream)
        else:
            self._work.wait(timeout)
        return self._result
