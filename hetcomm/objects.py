"""Python objects between the ranks of a communicator, as pickles."""

from __future__ import annotations

import hmac
import pickle
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from hetcomm import _core
from hetcomm.arguments import TAGS, check_tag, whole_number
from hetcomm.work import Work

# Added to tags: messages of arrays and of objects never match.
_SIZES, _PICKLES = TAGS, 2 * TAGS
_LARGE = 16 << 20  # bytes; from here on the memory that is left counts
_SEAL = 32  # bytes
_ALL = -1  # the receiver of a value for all ranks


class Objects:
    """Calls with Python objects, sent as pickles; see Communicator.

    Reading a pickle can run any code. Each pickle has a seal by the group's key, which its receiver
    checks first. So pickles come from ranks of the group: use these calls only among ranks that you
    trust. They need a communicator on host memory. If a rank cannot pickle its
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
    _seals: Seals

    def broadcast_object(self, value: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Returns the root's value on every rank, and ignores the value of other ranks."""
        call = self._seals.call("broadcast_object")
        data = self._pickled(call, value) if self.rank == root else _Pickled(b"")
        size = array("q", [data.size])
        self.broadcast(size, root=root, timeout=timeout)
        self._seals.count(call)
        room = data.bytes if self.rank == root else _room(call.name, size[0], root)
        self.broadcast(room, root=root, timeout=timeout)
        if self.rank == root and data.error is None:
            return value
        return _loaded(call, room, size[0], root, _ALL, data.error)

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
        call = self._seals.call("scatter_object")
        mine = [_Pickled(b"")] * self.size
        if self.rank == root:
            mine = self._each(call, values)
        sizes = array("q", [one.size for one in mine])
        self.broadcast(sizes, root=root, timeout=timeout)
        self._seals.count(call)
        most = max(map(abs, sizes))
        part = _room(call.name, most, root)
        rows = bytearray(b"".join(one.bytes.ljust(most, b"\0") for one in mine))
        self.scatter(rows if self.rank == root else None, part, root=root, timeout=timeout)
        return _loaded(call, part, sizes[self.rank], root, self.rank, mine[0].error)

    def all_to_all_object(
        self, values: Sequence[Any], *, timeout: float | None = None
    ) -> list[Any]:
        """The r-th of each rank's values goes to rank r. Rank r gets them in the order of ranks."""
        call = self._seals.call("all_to_all_object")
        mine = self._each(call, values)
        sends = array("q", [one.size for one in mine])
        receives = array("q", sends)
        self.all_to_all(sends, receives, timeout=timeout)
        self._seals.count(call)
        parts = [abs(size) for size in receives]
        data = _room(call.name, sum(parts), parts.index(max(parts)))
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
            piece = data[at : at + part]
            found.append(_loaded(call, piece, receives[source], source, self.rank, error))
            at += part
        return found

    def send_object(
        self, value: Any, to: int, *, tag: int = 0, timeout: float | None = None
    ) -> None:
        """Returns when `value` may be changed. Large values wait for the receiver."""
        self._check_host("send_object")
        check_tag(tag)
        data = _Pickled.of(value)
        if data.error is not None:
            raise _refusal("send_object", self.rank, data.bytes) from data.error
        call = self._seals.message("send_object", self.rank, to, tag)
        data = data.sealed(call, self.rank, to)
        self._message(
            _core.Collective.send, array("q", [data.size]), to, _SIZES + tag, None, False, timeout
        )
        self._seals.count(call)
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
        call = self._seals.message("recv_object", sender, self.rank, tag)
        self._seals.count(call)
        return _loaded(call, data, size[0], sender, self.rank, None)

    def _gathered(
        self, name: str, value: Any, root: int | None, timeout: float | None
    ) -> list[Any] | None:
        call = self._seals.call(name)
        data = self._pickled(call, value)
        sizes = array("q", bytes(8 * self.size))
        self.all_gather(array("q", [data.size]), sizes, timeout=timeout)
        self._seals.count(call)
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
        view = memoryview(rows)
        return [_loaded(call, view[at * most :], sizes[at], at, _ALL, data.error) for at in order]

    def _each(self, call: _Call, values: Any) -> list[_Pickled]:
        """The pickles of one value per rank. If one value cannot be pickled, all are refusals."""
        self._check_host(call.name)
        expected = f"expected {self.size} values, got"
        try:
            given = list(values)
            if len(given) != self.size:
                raise ValueError(f"{expected} {len(given)}; give one for each rank")
            made = [_Pickled.of(value) for value in given]
        except ValueError as error:
            made = [_Pickled.refused(str(error), error)] * self.size
        except Exception as error:
            text = f"{expected} a {type(values).__name__}: {error}; give one for each rank"
            made = [_Pickled.refused(text, error)] * self.size
        made = next(([one] * self.size for one in made if one.error is not None), made)
        return [one.sealed(call, self.rank, to) for to, one in enumerate(made)]

    def _pickled(self, call: _Call, value: Any) -> _Pickled:
        self._check_host(call.name)
        return _Pickled.of(value).sealed(call, self.rank, _ALL)

    def _check_host(self, name: str) -> None:
        if self._on_device:
            raise _core.InvalidArgumentError(
                f"{name}: expected a communicator on host memory, got one on a device; make one "
                'with device="cpu" for objects'
            )


class _Call(NamedTuple):
    """One call with objects. Both ends of a value derive the same seal."""

    name: str
    key: bytes
    kind: str
    number: int

    def seal(
        self, content: bytes | bytearray | memoryview, sender: int, receiver: int, refused: bool
    ) -> bytes:
        what = "refusal" if refused else "value"
        head = f"{what} of {self.kind} number {self.number} from {sender} to {receiver}:".encode()
        made = hmac.new(self.key, head, "sha256")
        made.update(content)
        return made.digest()


class Seals:
    """Numbers the calls of a group, so that no seal serves twice."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._calls: Counter[str] = Counter()

    def call(self, name: str) -> _Call:
        """A collective; all ranks make the same ones in the same order."""
        return self._next(name, name)

    def message(self, name: str, sender: int, receiver: int, tag: int) -> _Call:
        return self._next(name, f"message {sender} {receiver} {tag}")

    def count(self, call: _Call) -> None:
        """The call has begun on all its ranks. A call that was refused before has no number."""
        self._calls[call.kind] = call.number

    def _next(self, name: str, kind: str) -> _Call:
        return _Call(name, self._key, kind, self._calls[kind] + 1)


class _Pickled:
    """A pickled value, or the refusal to pickle it."""

    def __init__(self, data: bytes | bytearray, error: Exception | None = None) -> None:
        self.bytes = bytearray(data)
        self.error = error
        # Sent first. A negative size announces the text of a refusal.
        self.size = len(data) if error is None else -len(data)

    @classmethod
    def of(cls, value: Any) -> _Pickled:
        try:
            return cls(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            return cls.refused(
                f"expected a value that can be pickled, got a {type(value).__name__}: "
                f"{type(error).__name__}: {error}; pass plain data",
                error,
            )

    @classmethod
    def refused(cls, text: str, error: Exception) -> _Pickled:
        return cls(text.encode(), error)

    def sealed(self, call: _Call, sender: int, receiver: int) -> _Pickled:
        seal = call.seal(self.bytes, sender, receiver, self.error is not None)
        return _Pickled(seal + self.bytes, self.error)


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


def _loaded(
    call: _Call,
    data: bytearray | memoryview,
    size: int,
    source: int,
    receiver: int,
    error: Exception | None,
) -> Any:
    """The value of `source`, once its seal is right. error: of this rank's own pickle, if any."""
    sealed = memoryview(data)[: abs(size)]
    content = sealed[_SEAL:]
    if not hmac.compare_digest(sealed[:_SEAL], call.seal(content, source, receiver, size < 0)):
        refused: Exception = _core.TransportError(
            f"{call.name}: expected the seal of rank {source} on its value, got another: a program "
            "without the group's key has changed the value on its way, or the ranks make different "
            "calls; keep the job's network private, see docs/security.md"
        )
        raise refused
    if size < 0:
        raise _refusal(call.name, source, bytearray(content)) from error
    return pickle.loads(content)


def _refusal(name: str, rank: int, text: bytearray) -> Exception:
    refused: Exception = _core.InvalidArgumentError(f"{name}: rank {rank}: {text.decode()}")
    return refused
