"""The order in which units run: the last forward pass tells which unit to gather ahead."""

from __future__ import annotations

from hetcomm.partitioning.units import Unit


class Order:
    """Neighbours of units in forward passes, without the root, whose pass is around all others."""

    def __init__(self) -> None:
        self._after: dict[Unit, Unit] = {}
        self._before: dict[Unit, Unit] = {}
        self._latest: Unit | None = None
        self._last: Unit | None = None

    def note(self, unit: Unit) -> None:
        """Begins the forward pass of a unit. The root's pass begins the order anew."""
        if unit.index == 0:
            self._latest = None
            return
        if self._latest is not None:
            self._after[self._latest] = unit
            self._before[unit] = self._latest
        self._latest = unit

    def end(self) -> None:
        """Ends the root's forward pass."""
        self._last = self._latest

    def after(self, unit: Unit) -> Unit | None:
        """The unit that ran next in the pass before; None if there was none."""
        return self._after.get(unit)

    def before(self, unit: Unit) -> Unit | None:
        """The unit that ran before: the next one of the backward pass."""
        return self._before.get(unit)

    def is_last(self, unit: Unit) -> bool:
        """Whether the last whole pass ended with the unit. The backward pass begins with it."""
        return unit is self._last
