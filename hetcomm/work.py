"""The handle of an operation of the array API."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hetcomm import _core
from hetcomm.arguments import timeout_of
from hetcomm.arrays import Array


class Work:
    """A pending operation. It keeps its arrays alive. Do not touch the arrays until it is over.
    done() or wait() fills a result array that is not C-contiguous."""

    def __init__(
        self,
        work: _core.Work,
        result: Array,
        stream: int | None,
        write_back: Callable[[], None] | None = None,
    ) -> None:
        """write_back: fills the result after the operation."""
        self._work, self._result, self._stream = work, result, stream
        self._write_back, self._write_lock = write_back, threading.Lock()
        self._other: Work | None = None

    def combined_with(self, other: Work) -> Work:
        """Returns this work, which now ends with the later one of both."""
        self._other = other
        return self

    def done(self) -> bool:
        """Whether the operation is over, successfully or not. wait() raises its failure."""
        if self._other is not None and not self._other.done():
            return False
        if not self._work.done():
            return False
        if self._write_back is not None:
            try:
                self._work.wait()
            except _core.Error:
                return True
            self._fill()
        return True

    def source(self) -> int:
        """The sender of a completed receive."""
        if not self._work.done():
            raise _core.InvalidArgumentError(
                "source: expected a receive that is over; this one is under way; wait for it first"
            )
        return int(self._work.source)

    def where(self) -> str:
        """Describes the steps under way."""
        return str(self._work.where())

    def spans(self) -> list[_core.Span]:
        """Start and end of the steps, in the order of the plan. The operation must be over, and
        started within Communicator.trace().

        A span has kind, such as "recv", peers (the ranks it needs), bytes, and start and end in ns
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
        """Waits for the result and returns its array.

        Args:
            timeout: seconds; None is the operation's own. The operation continues after a timeout.
                With device arrays and no timeout, the stream of the call waits. The host waits
                until all that is left is in streams, which a call of a native library is at once.

        Raises:
            hetcomm.Error: the operation failed; TimeoutError: it is not over yet.
        """
        timeout = timeout_of(timeout)
        if self._stream is not None and timeout is None:
            self._work.block_stream(self._stream)
        else:
            self._work.wait(timeout)
        if self._other is not None:
            self._other.wait(timeout)
        self._fill()
        return self._result

    def _fill(self) -> None:
        with self._write_lock:
            if self._write_back is not None:
                self._write_back()
                self._write_back = None
