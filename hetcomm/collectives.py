"""The collectives and messages of a communicator of arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Number
from typing import Any

from hetcomm import _core, arrays, strided
from hetcomm.arrays import Array
from hetcomm.operations import OPERATIONS, name_of
from hetcomm.work import Work

# Numbers, which cost less to pass than members of Collective.
_ALL_REDUCE = int(_core.Collective.all_reduce)
_BROADCAST = int(_core.Collective.broadcast)
_REDUCE = int(_core.Collective.reduce)
_ALL_GATHER = int(_core.Collective.all_gather)
_REDUCE_SCATTER = int(_core.Collective.reduce_scatter)
_ALL_TO_ALL = int(_core.Collective.all_to_all)
_GATHER = int(_core.Collective.gather)
_SCATTER = int(_core.Collective.scatter)
_BARRIER = int(_core.Collective.barrier)
# Of users' messages; those beyond are the group's own.
TAGS = 1 << 16


def check_tag(tag: int) -> None:
    """Raises InvalidArgumentError for what users may not give."""
    if not 0 <= tag < TAGS:
        raise _core.InvalidArgumentError(f"tag: expected 0 to {TAGS - 1}, got {tag}")


def _rows(sizes: Sequence[int] | None) -> list[int]:
    """None for even ones is an empty list."""
    if sizes is None:
        return []
    try:
        return [operator.index(size) for size in sizes]
    except TypeError as error:
        raise _core.InvalidArgumentError(
            f"split sizes: expected a whole number for each rank, got {sizes!r} ({error}); give "
            "their rows along the first axis"
        ) from None


class Collectives:
    """What the ranks of a communicator do together; see Communicator. Parameters may be given by
    position."""

    _core: _core.Communicator
    _collective: Any
    _on_device: bool
    _single: Any
    rank: int
    size: int

    # Collectives. "n" is the number of ranks. No parameter is for keywords alone: each of those
    # would be looked up in every call, which small ones notice.

    def all_reduce(
        self,
        array: Array,
        out: Array = None,
        op: str = "sum",
        factor: float = 1.0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Every rank gets the reduction of all arrays, of one shape; `out` may be `array`."""
        if out is None:
            with self._telling():
                out = arrays.empty(array, arrays.shape(array))
        return self._collective(
            self, _ALL_REDUCE, array, out, op, factor, 0, stream, async_op, timeout
        )

    def reduce(
        self,
        array: Array,
        out: Array = None,
        root: int | None = None,
        op: str = "sum",
        factor: float = 1.0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The root, 0 if None, gets the reduction of all arrays, which have one shape; the others
        None. A whole number in place of `out` is the root: reduce(x, 2)."""
        out, root = self._placed(out, root)
        if out is None and self.rank == root:
            with self._telling():
                out = arrays.empty(array, arrays.shape(array))
        out = out if self.rank == root else None
        return self._collective(
            self, _REDUCE, array, out, op, factor, root, stream, async_op, timeout
        )

    def broadcast(
        self,
        array: Array,
        root: int = 0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Every rank's array becomes that of the root; all have one shape."""
        return self._collective(
            self, _BROADCAST, array, array, "sum", 1.0, root, stream, async_op, timeout
        )

    def all_gather(
        self,
        array: Array,
        out: Array = None,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Every rank gets all arrays, of one shape, in the order of ranks: (n, *array.shape)."""
        if out is None:
            with self._telling():
                out = arrays.empty(array, (self.size, *arrays.shape(array)))
        return self._collective(
            self, _ALL_GATHER, array, out, "sum", 1.0, 0, stream, async_op, timeout
        )

    def reduce_scatter(
        self,
        array: Array,
        out: Array = None,
        op: str = "sum",
        factor: float = 1.0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Rank r gets the r-th of n equal parts, along the first axis, of the reduction of all
        arrays: (array.shape[0] / n, *array.shape[1:])."""
        if out is None:
            with self._telling():
                out = arrays.empty(array, self._block_shape(array, "reduce_scatter"))
        return self._collective(
            self, _REDUCE_SCATTER, array, out, op, factor, 0, stream, async_op, timeout
        )

    def all_to_all(
        self,
        array: Array,
        out: Array = None,
        input_split_sizes: Sequence[int] | None = None,
        output_split_sizes: Sequence[int] | None = None,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The r-th of n equal parts of each array, along the first axis, goes to rank r, which gets
        them in the order of ranks: array.shape.

        With split sizes, which all ranks give or none, the parts are unequal: the r-th has
        input_split_sizes[r] rows of the array, and what comes from rank r output_split_sizes[r] of
        the result, (sum(output_split_sizes), *array.shape[1:]). A side without is even. Each part
        must have the length that its receiver expects.
        """
        if input_split_sizes is not None or output_split_sizes is not None:
            with self._telling():
                splits = _rows(input_split_sizes), _rows(output_split_sizes)
                if out is None:
                    shape = arrays.shape(array)
                    rows = sum(splits[1]) if splits[1] else shape[0] if shape else 0
                    out = arrays.empty(array, (max(rows, 0), *shape[1:]))
            return self._start(
                _ALL_TO_ALL, array, out, "sum", 1.0, 0, stream, async_op, timeout, splits
            )
        if out is None:
            with self._telling():
                self._block_shape(array, "all_to_all")
                out = arrays.empty(array, arrays.shape(array))
        return self._collective(
            self, _ALL_TO_ALL, array, out, "sum", 1.0, 0, stream, async_op, timeout
        )

    def gather(
        self,
        array: Array,
        out: Array = None,
        root: int | None = None,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The root, 0 if None, gets all arrays, of one shape: (n, *array.shape); the others None. A
        whole number in place of `out` is the root: gather(x, 2)."""
        out, root = self._placed(out, root)
        if out is None and self.rank == root:
            with self._telling():
                out = arrays.empty(array, (self.size, *arrays.shape(array)))
        out = out if self.rank == root else None
        return self._collective(
            self, _GATHER, array, out, "sum", 1.0, root, stream, async_op, timeout
        )

    def scatter(
        self,
        array: Array | None,
        out: Array = None,
        root: int | None = None,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Every rank gets its part of the array of the root, 0 if None, which is (n, *out.shape);
        the others give None. `out` may be left away on the root only, which alone knows the shape.
        A whole number in place of `out` is the root: scatter(x, 2), scatter(None, 2, out)."""
        out, root = self._placed(out, root)
        if out is None and self.rank == root and array is not None:
            out = arrays.empty(array, arrays.shape(array)[1:])
        if out is None:
            with self._telling():
                raise _core.InvalidArgumentError(
                    "scatter: expected `out`, an array for this rank's part; got None; only the "
                    "root knows its shape without it"
                )
        given = array if self.rank == root else None
        return self._collective(
            self, _SCATTER, given, out, "sum", 1.0, root, stream, async_op, timeout
        )

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Returns when all ranks have come to it, whatever streams still have to do."""
        return self._collective(self, _BARRIER, None, None, "sum", 1.0, 0, None, async_op, timeout)

    # Messages: in order for each pair of ranks and tag, from 0 to 65535.

    def send(
        self,
        array: Array,
        to: int,
        *,
        tag: int = 0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Returns `array`, which may be used again. Large arrays wait for the receiver."""
        check_tag(tag)
        return self._message(_core.Collective.send, array, to, tag, stream, async_op, timeout)

    def recv(
        self,
        out: Array,
        source: int | None = None,
        *,
        tag: int = 0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Returns `out`, with the elements of a message as long as it. source: a rank, or None for
        whoever sends first (host memory only)."""
        if source is not None and source < 0:
            raise _core.InvalidArgumentError(
                f"recv: expected a rank from 0 to {self.size - 1}, or None for any; got {source}"
            )
        check_tag(tag)
        peer = -1 if source is None else source
        return self._message(_core.Collective.recv, out, peer, tag, stream, async_op, timeout)

    def sendrecv(
        self,
        array: Array,
        to: int,
        out: Array = None,
        source: int | None = None,
        *,
        tag: int = 0,
        recv_tag: int | None = None,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Sends `array` and receives `out` at the same time, so that ranks may do it in a ring.
        Returns `out`, like `array` if None, which is another array. source: as of recv(); recv_tag:
        `tag` if None. To itself, `to` and `source`, a rank copies."""
        if out is None:
            out = arrays.empty(array, arrays.shape(array))
        if out is array:
            raise _core.InvalidArgumentError(
                "sendrecv: expected `out` apart from the array that is sent; got the same"
            )
        if to == source == self.rank:
            return self._single().all_gather(array, out, stream, async_op, timeout)
        sent = self.send(array, to, tag=tag, stream=stream, async_op=True, timeout=timeout)
        tag = tag if recv_tag is None else recv_tag
        got = self.recv(out, source, tag=tag, stream=stream, async_op=True, timeout=timeout)
        return self._finish(got.beside(sent), async_op)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """The others, who may wait for this rank in a collective, hear why it has refused it."""
        try:
            yield
        except _core.InvalidArgumentError as error:
            self._core.report_refusal(str(error))
            raise

    def _block_shape(self, array: Array, operation: str) -> tuple[int, ...]:
        shape = arrays.shape(array)
        if shape and shape[0] % self.size == 0:
            return (shape[0] // self.size, *shape[1:])
        raise _core.InvalidArgumentError(
            f"{operation}: expected a first axis of {self.size} equal parts, got shape {shape}; "
            "pad the array, or give `out` to cut it as it lies in memory"
        )

    def _start(
        self,
        collective: int,
        array: Array,
        out: Array,
        op: str,
        factor: float,
        root: int,
        stream: Any,
        async_op: bool,
        timeout: float | None,
        splits: tuple[list[int], list[int]] | None = None,
    ) -> Any:
        chosen = OPERATIONS.get(op) if isinstance(op, str) else None
        if chosen is None:
            with self._telling():
                op = name_of(op, array)
            return self._collective(
                self, collective, array, out, op, factor, root, stream, async_op, timeout
            )
        given, result, store = self._packed(array, out)
        order, dlpack = self._streams(result if given is None else given, stream)
        work = _core.start_collective(
            self._core, _core.Collective(collective), given, result, chosen, factor, root,
            not async_op, timeout, order, dlpack, splits,
        )  # fmt: skip
        return self._finish(Work(work, out, order, store), async_op)

    def _message(
        self,
        direction: _core.Collective,
        array: Array,
        peer: int,
        tag: int,
        stream: Any,
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        receives = direction == _core.Collective.recv
        memory, store = array, None
        if not self._on_device and receives:
            _, memory, store = strided.packed(None, array)
        elif not self._on_device:
            memory, _, _ = strided.packed(array, None)
        order, dlpack = self._streams(memory, stream)
        work = _core.start_message(
            self._core, direction, memory, peer, tag, not async_op, timeout, order, dlpack
        )
        return self._finish(Work(work, array, order, store), async_op)

    def _finish(self, work: Work, async_op: bool) -> Any:
        return work if async_op else work.wait()

    def _packed(self, array: Array, out: Array) -> tuple[Array, Array, strided.Store | None]:
        """Those of a device stay as they are: their library would copy them in its own streams."""
        if self._on_device or (strided.is_packed(array) and strided.is_packed(out)):
            return array, out, None
        with self._telling():
            return strided.packed(array, out)

    def _placed(self, out: Any, root: Any) -> tuple[Array, int]:
        """`out` and the root, which a caller may give in either order."""
        if isinstance(out, Integral):
            out, root = root, out
        if isinstance(root, Integral | None) and not isinstance(out, Number):
            return out, 0 if root is None else operator.index(root)
        with self._telling():
            raise _core.InvalidArgumentError(
                "root and `out`: expected a whole number and an array, or None; got "
                f"{type(out).__name__} and {type(root).__name__}"
            )

    def _streams(self, array: Array, stream: Any) -> tuple[int | None, int | None]:
        """The stream of the call, and how DLPack names it; neither in host memory, nor
        without an array."""
        if not self._on_device or array is None:
            return None, None
        pointer = arrays.pointer(arrays.current_stream(array) if stream is None else stream)
        default = 1 if self._core.topology.rank(self.rank).vendor == "nvidia" else 0
        return pointer, pointer or default
