"""Collectives in several stages, several of them in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Staged(Protocol):
    """Collectives one after another. The first has been started."""

    def advance(self) -> bool:
        """Waits for the stage and starts the next one. True after the last."""


Kind = TypeVar("Kind", bound=Staged)


class InFlight(Generic[Kind]):
    """Collectives in flight. Stages start in the order of append(), the same on all ranks."""

    def __init__(self) -> None:
        self._running: deque[Kind] = deque()

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._running)

    def append(self, new: Kind) -> None:
        self._running.append(new)

    def advance(self) -> None:
        """Moves each on by one stage."""
        self._running = deque([each for each in self._running if not each.advance()])

    def finish(self) -> None:
        """Waits for all stages."""
        while self._running:
            self.advance()
