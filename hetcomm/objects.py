"""Python objects between the ranks of a communicator, as pickles."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Sequence
from typing import Any

from hetcomm import _core
from hetcomm.arguments import TAGS, check_tag, whole_number
from hetcomm.work import Work

# Added to tags: messages of arrays and of objects never match.
_SIZES, _PICKLES = TAGS, 2 * TAGS
_LARGE = 16 << 20  # bytes; from here on the memory that is left counts


class Objects:
    """Calls with Python objects, sent as pickles; see Communicator.

    Reading a pickle can run any code. Pickles come from ranks of the group: use these calls only
    among ranks that you trust. They need a communicator on host memory. If a rank cannot pickle its
    object, all ranks of a collective raise InvalidArgumentError with that rank. Each call makes a
    few operations; `timeout` bounds each of them.
    """

    _on_device: bool
    rank: int
    size: int
    all_gather: Any
    all_to_all: Any
    broadcast: Any
    gather: Any
    scatter: Any
    _message: Any

    def broadcast_object(self, value: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Returns the root's value on every rank, and ignores the value of other ranks."""
        data = self._pickled("broadcast_object", value) if self.rank == root else _Pickled(b"")
        size = array("q", [data.size])
        self.broadcast(size, root=root, timeout=timeout)
        room = data.bytes if self.rank == root else _room("broadcast_object", size[0], root)
        self.broadcast(room, root=root, timeout=timeout)
        if self.rank == root and data.error is None:
            return value
        return _loaded("broadcast_object", room, size[0], root, data.error)

    def all_gather_object(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Returns every rank's value, in the order of ranks. Each rank sends as many bytes as the
        largest value has."""
        found = self._gathered("all_gather_object", value, None, timeout)
        assert found is not None
        return found

    def gather_object(
        self, value: Any, root: int = 0, *, timeout: float | None = None
    ) -> list[Any] | None:
        """The root gets every rank's value, in the order of ranks. Other ranks get None. Each rank
        sends as many bytes as the largest value has."""
        return self._gathered("gather_object", value, root, timeout)

    def scatter_object(
        self, values: Sequence[Any] | None, root: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Rank r gets the r-th of the root's values, one for each rank. Values of other ranks are
        ignored."""
        name = "scatter_object"
        mine = [_Pickled(b"")] * self.size
        if self.rank == root:
            mine = self._each(name, values)
        sizes = array("q", [one.size for one in mine])
        self.broadcast(sizes, root=root, timeout=timeout)
        most = max(map(abs, sizes))
        part = _room(name, most, root)
        rows = bytearray(b"".join(one.bytes.ljust(most, b"\0") for one in mine))
        self.scatter(rows if self.rank == root else None, part, root=root, timeout=timeout)
        return _loaded(name, part, sizes[self.rank], root, mine[0].error)

    def all_to_all_object(
        self, values: Sequence[Any], *, timeout: float | None = None
    ) -> list[Any]:
        """The r-th of each rank's values goes to rank r. Rank r gets them in the order of ranks."""
        name = "all_to_all_object"
        mine = self._each(name, values)
        sends = array("q", [one.size for one in mine])
        receives = array("q", sends)
        self.all_to_all(sends, receives, timeout=timeout)
        parts = [abs(size) for size in receives]
        data = _room(name, sum(parts), parts.index(max(parts)))
        self.all_to_all(
            bytearray(b"".join(one.bytes for one in mine)),
            data,
            input_split_sizes=[abs(size) for size in sends],
            output_split_sizes=parts,
            timeout=timeout,
        )
        at, found = 0, []
        for source, part in enumerate(parts):
            error = mine[0].error
            found.append(_loaded(name, data[at : at + part], receives[source], source, error))
            at += part
        return found

    def send_object(
        self, value: Any, to: int, *, tag: int = 0, timeout: float | None = None
    ) -> None:
        """Returns when `value` may be changed. Large values wait for the receiver."""
        data = self._pickled("send_object", value)
        if data.error is not None:
            raise _refusal("send_object", self.rank, data.bytes) from data.error
        check_tag(tag)
        self._message(
            _core.Collective.send, array("q", [data.size]), to, _SIZES + tag, None, False, timeout
        )
        self._message(_core.Collective.send, data.bytes, to, _PICKLES + tag, None, False, timeout)

    def recv_object(
        self, source: int | None = None, *, tag: int = 0, timeout: float | None = None
    ) -> Any:
        """Returns the value of send_object() on `source`; None is the first sender."""
        self._check_host("recv_object")
        check_tag(tag)
        size = array("q", [0])
        if source is not None and whole_number("source", source) < 0:
            raise _core.InvalidArgumentError(
                f"recv_object: expected a rank, or None for any; got {source}"
            )
        peer = -1 if source is None else source
        work: Work = self._message(
            _core.Collective.recv, size, peer, _SIZES + tag, None, True, timeout
        )
        work.wait()
        sender = work.source()
        data = _room("recv_object", size[0], sender)
        self._message(_core.Collective.recv, data, sender, _PICKLES + tag, None, False, timeout)
        return _loaded("recv_object", data, size[0], sender, None)

    def _gathered(
        self, name: str, value: Any, root: int | None, timeout: float | None
    ) -> list[Any] | None:
        data = self._pickled(name, value)
        sizes = array("q", bytes(8 * self.size))
        self.all_gather(array("q", [data.size]), sizes, timeout=timeout)
        most = max(map(abs, sizes))
        largest = list(map(abs, sizes)).index(most)
        row = _room(name, most, largest)
        row[: len(data.bytes)] = data.bytes
        refused = next((at for at, size in enumerate(sizes) if size < 0), None)
        if refused is None and root is not None and root != self.rank:
            self.gather(row, None, root=root, timeout=timeout)
            return None
        rows = _room(name, most * self.size, largest)
        if root is None or refused is not None:  # all ranks get the first refusal
            self.all_gather(row, rows, timeout=timeout)
        else:
            self.gather(row, rows, root=root, timeout=timeout)
        order = range(self.size) if refused is None else [refused]
        return [
            _loaded(name, rows[at * most : at * most + abs(sizes[at])], sizes[at], at, data.error)
            for at in order
        ]

    def _each(self, name: str, values: Any) -> list[_Pickled]:
        """The pickles of one value per rank. If one value cannot be pickled, all are refusals."""
        expected = f"expected {self.size} values, got"
        try:
            given = list(values)
            if len(given) != self.size:
                raise ValueError(f"{expected} {len(given)}; give one for each rank")
        except ValueError as error:
            return [_Pickled.refused(str(error), error)] * self.size
        except Exception as error:
            text = f"{expected} a {type(values).__name__}: {error}; give one for each rank"
            return [_Pickled.refused(text, error)] * self.size
        made = [self._pickled(name, value) for value in given]
        return next(([one] * self.size for one in made if one.error is not None), made)

    def _pickled(self, name: str, value: Any) -> _Pickled:
        self._check_host(name)
        try:
            return _Pickled(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            return _Pickled.refused(
                f"expected a value that can be pickled, got a {type(value).__name__}: "
                f"{type(error).__name__}: {error}; pass plain data",
                error,
            )

    def _check_host(self, name: str) -> None:
        if self._on_device:
            raise _core.InvalidArgumentError(
                f"{name}: expected a communicator on host memory, got one on a device; make one "
                'with device="cpu" for objects'
            )


class _Pickled:
    """A pickled value, or the refusal to pickle it."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.bytes = bytearray(data)
        self.error = error
        # Sent first. A negative size announces the text of a refusal.
        self.size = len(data) if error is None else -len(data)

    @classmethod
    def refused(cls, text: str, error: Exception) -> _Pickled:
        return cls(text.encode(), error)


def _room(name: str, size: int, source: int) -> bytearray:
    """Memory for so many bytes, as `source` announced."""
    _check_size(name, size, source)
    return bytearray(abs(size))


def _check_size(name: str, size: int, source: int) -> None:
    """Raises InvalidArgumentError for bytes that cannot fit, before any are taken."""
    if abs(size) > _LARGE and abs(size) > (left := _core.available_memory()):
        raise _core.InvalidArgumentError(
            f"{name}: expected objects that fit into the {_core.format_bytes(left)} that are left "
            f"here, got {abs(size)} bytes, by rank {source}; send smaller objects, or see that "
            "rank's own log"
        )


def _loaded(name: str, data: bytearray, size: int, source: int, error: Exception | None) -> Any:
    """The value of `source`. error: of this rank's own pickle, if any."""
    if size < 0:
        raise _refusal(name, source, data[:-size]) from error
    return pickle.loads(memoryview(data)[:size])


def _refusal(name: str, rank: int, text: bytearray) -> Exception:
    refused: Exception = _core.InvalidArgumentError(f"{name}: rank {rank}: {text.decode()}")
    return refused
