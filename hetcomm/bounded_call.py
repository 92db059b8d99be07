"""Calls that may never return, such as those of a store whose server stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from hetcomm import _core

T = TypeVar("T")

ANSWER_SECONDS = 0.5  # for the answer of a call, after its time


class StoreTimeoutError(_core.TimeoutError):
    """The store itself does not answer, whatever ranks do."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} does not answer; see that the process that serves it runs and is not "
            "stopped, and that this host reaches it"
        )


class BoundedCall(Generic[T]):
    """A call on a thread of its own, which is given up after a time.

    function: gets an event, which is set once nobody waits for the call any more.
    """

    def __init__(self, function: Callable[[threading.Event], T]) -> None:
        self._function = function
        self._value: list[T] = []
        self._error: Exception | None = None
        self._given_up = threading.Event()
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._value.append(self._function(self._given_up))
        except Exception as error:
            self._error = error
        self._over.set()

    def over_within(self, seconds: float) -> bool:
        return self._over.wait(seconds)

    def result(self, seconds: float, place: str) -> T:
        """Raises what the call raises, or StoreTimeoutError if it has not ended by then."""
        try:
            self._over.wait(seconds)
        finally:
            self._given_up.set()
        if not self._over.wait(ANSWER_SECONDS):
            raise StoreTimeoutError(place)
        if self._error is not None:
            raise self._error
        return self._value[0]
