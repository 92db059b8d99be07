"""Calls in a row, and how long they take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat


def seconds_of(
    call: Callable[[], object], calls: int = 1, finish: Callable[[], object] | None = None
) -> float:
    """Seconds of so many calls in a row. finish: waits for pending work of the calls."""
    start = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    if finish is not None:
        finish()
    return time.perf_counter() - start


@contextmanager
def calling_every(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Calls `action` on a thread every so many seconds while the block runs."""
    ended = threading.Event()

    def call() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=call, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
