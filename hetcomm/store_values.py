"""The values of hetcomm's own store, and the clients that wait for them."""

from __future__ import annotations

import heapq
from collections import deque

from hetcomm.store_connection import Connection
from hetcomm.store_protocol import EXPIRED, FOUND

MOST_HELD = 1 << 30  # bytes of all values, their keys, and values on their way
_KEY_COST = 256  # bytes that a key takes besides its text
_FEW = 1 << 16  # deadlines


def cost_of(key: int, value: int) -> int:
    """Bytes, of a key and a value of so many bytes."""
    return _KEY_COST + key + value


class Values:
    """held: bytes of the values and of those on their way. answered: connections whose wait is
    over, each with the sign and the value of its answer."""

    def __init__(self) -> None:
        self.held = 0
        self.answered: deque[tuple[Connection, bytes, bytes]] = deque()
        self._values: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, dict[int, Connection]] = {}  # by key and number
        self._deadlines: list[tuple[float, int, bytes]] = []  # of waits: a heap
        self._most_deadlines = _FEW

    def keys(self) -> list[bytes]:
        return list(self._values)

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Ends the waits for the key."""
        self.forget(key)
        self._values[key] = value
        self.held += cost_of(len(key), len(value))
        for connection in self._waiting.pop(key, {}).values():
            connection.key = None
            self.answered.append((connection, FOUND, value))

    def forget(self, key: bytes) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.held -= cost_of(len(key), len(value))

    def why_full(self, cost: int) -> str:
        """Why there is no room for so many bytes; "" if there is."""
        if self.held + cost <= MOST_HELD:
            return ""
        return (
            f"it holds {self.held} of at most {MOST_HELD} bytes, and this value takes {cost}; "
            "delete keys, or serve another store"
        )

    def await_key(self, key: bytes, connection: Connection, until: float) -> None:
        connection.key, connection.until = key, until
        self._waiting.setdefault(key, {})[connection.number] = connection
        heapq.heappush(self._deadlines, (until, connection.number, key))
        if len(self._deadlines) > self._most_deadlines:  # of waits that are over, too
            self._deadlines = [
                (connection.until, connection.number, key)
                for key, waiting in self._waiting.items()
                for connection in waiting.values()
            ]
            heapq.heapify(self._deadlines)
            self._most_deadlines = 2 * len(self._deadlines) + _FEW

    def give_up(self, connection: Connection) -> None:
        """Ends the connection's wait, if any, without an answer."""
        if connection.key is not None:
            others = self._waiting[connection.key]
            del others[connection.number]
            if not others:
                del self._waiting[connection.key]
            connection.key = None

    def next_deadline(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now: float, why: bytes) -> None:
        """Ends the waits whose time is over."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, key = heapq.heappop(self._deadlines)
            connection = self._waiting.get(key, {}).get(number)
            if connection is not None and connection.until <= now:
                self.give_up(connection)
                self.answered.append((connection, EXPIRED, why))
