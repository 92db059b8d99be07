"""The handle of an operation of the array API."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hetcomm import _core
from hetcomm.arrays import Array


class Work:
    """An operation under way. Its arrays stay alive, and must not be touched, until it is over. A
    result array that is not C-contiguous is filled by done() or wait()."""

    def __init__(
        self,
        work: _core.Work,
        result: Array,
        stream: int | None,
        store: Callable[[], None] | None = None,
    ) -> None:
        """store: what fills the result once the operation is over."""
        self._work, self._result, self._stream = work, result, stream
        self._store, self._storing = store, threading.Lock()
        self._beside: Work | None = None

    def beside(self, other: Work) -> Work:
        """Itself, over when `other` is too."""
        self._beside = other
        return self

    def done(self) -> bool:
        """Whether it is over, also by a failure, which wait() raises."""
        if self._beside is not None and not self._beside.done():
            return False
        if not self._work.done():
            return False
        if self._store is not None:
            try:
                self._work.wait()
            except _core.Error:
                return True
            self._fill()
        return True

    def source(self) -> int:
        """Of a receive that is over: the rank that sent."""
        if not self._work.done():
            raise _core.InvalidArgumentError(
                "source: expected a receive that is over; this one is under way; wait for it first"
            )
        return int(self._work.source)

    def where(self) -> str:
        """What it waits for at the moment: the steps under way, in words."""
        return str(self._work.where())

    def spans(self) -> list[_core.Span]:
        """When its steps started and ended, in the order of the plan: of an operation that is over,
        and was started within Communicator.trace().

        Each has kind, such as "recv", peers, the ranks it needs, bytes, and start and end in ns
        since the call.
        """
        trace = self._work.trace
        if trace is None:
            raise _core.InvalidArgumentError(
                "spans: expected an operation that is over and was started within "
                f"Communicator.trace(); this one {'was not' if self.done() else 'is under way'}"
            )
        spans: list[_core.Span] = trace.spans
        return spans

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
            self._work.block_stream(self._stream)
        else:
            self._work.wait(timeout)
        if self._beside is not None:
            self._beside.wait(timeout)
        self._fill()
        return self._result

    def _fill(self) -> None:
        with self._storing:
            if self._store is not None:
                self._store()
                self._store = None
