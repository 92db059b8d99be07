"""How long calls take."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat


def seconds_of(
    call: Callable[[], object], calls: int = 1, finish: Callable[[], object] | None = None
) -> float:
    """Seconds of so many calls in a row. finish: waits for what the calls leave under way."""
    start = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    if finish is not None:
        finish()
    return time.perf_counter() - start
