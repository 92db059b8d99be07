"""The gap between two calls: nothing, other work, or a pause.

A training step computes between its collectives. Calls then start at different times on the ranks,
find other data in the caches, and may have to wake a rank.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hetcomm import _core
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.legs import one_clock
from hetcomm.bench.values import Array

WORKED_ON = 32 << 20  # bytes, more than the caches of a core
PIECE = 64 << 10  # elements between two looks at the clock, some 100 us at most


@dataclass(frozen=True)
class Gap:
    """Seconds of sleep or of work before each timed call; not both."""

    pause: float = 0.0
    work: float = 0.0

    def __post_init__(self) -> None:
        if self.pause < 0 or self.work < 0:
            raise _core.InvalidArgumentError(
                f"--pause, --work: expected 0 s or more, got {self.pause:g} and {self.work:g}"
            )
        if self.pause and self.work:
            raise _core.InvalidArgumentError(
                "expected one of --pause and --work, got both; leave one out"
            )

    @property
    def seconds(self) -> float:
        return self.pause or self.work

    def describe(self) -> str:
        """ "after 1 ms of other work"; "" without a gap."""
        if not self.seconds:
            return ""
        what = "a pause of" if self.pause else "other work of"
        return f"after {what} {_core.format_seconds(self.seconds)}"


class Spender:
    """Spends gaps, and owns the memory of the work."""

    def __init__(self, gap: Gap) -> None:
        self._gap, self._at = gap, 0
        self._memory: Array = np.ones(WORKED_ON // 8 if gap.work else 0)

    def spend(self) -> None:
        """Sleeps, or reads and writes the memory, which evicts other data from the caches."""
        if self._gap.pause:
            time.sleep(self._gap.pause)
        end = time.perf_counter() + self._gap.work
        while time.perf_counter() < end:
            piece = self._memory[self._at : self._at + PIECE]
            np.add(piece, 1.0, out=piece)
            self._at = (self._at + PIECE) % len(self._memory)


def check_clocks(control: ControlChannel) -> None:
    """Raises InvalidArgumentError on every rank if ranks have different clocks.

    A call after a gap counts from the start of its last rank, so ranks need one clock.
    """
    began = time.perf_counter()
    control.gather(None)
    if not one_clock(control.gather([began, time.perf_counter()])):
        raise _core.InvalidArgumentError(
            "--pause, --work: expected ranks of one machine, which share a clock; got several "
            "machines; leave the option out"
        )


def since_last_began(spans: list[list[tuple[float, float]]]) -> list[list[float]]:
    """By rank, the seconds of each call from the start of its last rank. spans: by rank, start and
    end of each call."""
    last = [max(began for began, _ in call) for call in zip(*spans, strict=True)]
    return [
        [max(end - start, 0.0) for (_, end), start in zip(of_rank, last, strict=True)]
        for of_rank in spans
    ]
