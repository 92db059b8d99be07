"""The collectives and messages of a communicator of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Number
from typing import Any

from hetcomm import _core, arrays, strided
from hetcomm._vendors import vendors
from hetcomm.arguments import (
    check_tag,
    out_and_root,
    rank_number,
    real_number,
    split_rows,
    timeout_of,
    whole_number,
)
from hetcomm.arrays import Array
from hetcomm.codecs import codec as codec_of_calls
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
ShapeOf = Callable[[Array], tuple[int, ...]]


def _result(work: Work, async_op: bool) -> Any:
    return work if async_op else work.wait()


class Collectives:
    """Collectives and messages of a communicator; see Communicator. Parameters may be given by
    position. `codec` is that of hetcomm.codec(); None is the group's."""

    _communicator: _core.Communicator
    _collective: Any
    _on_device: bool
    _single: Any
    rank: int
    size: int

    # "n" is the number of ranks. Small calls would notice the look-up of keyword-only parameters,
    # and that of `_collective` as a method.

    def all_reduce(
        self,
        array: Array,
        out: Array = None,
        op: str = "sum",
        factor: float = 1.0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        codec: str | None = None,
    ) -> Any:
        """Every rank gets the reduction of all arrays. Shapes are equal; `out` may be `array`."""
        if out is None:
            out = self._new_output(array, arrays.shape)
        call = self._collective
        return call(self, _ALL_REDUCE, array, out, op, factor, 0, stream, async_op, timeout, codec)

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
        codec: str | None = None,
    ) -> Any:
        """The root, 0 if None, gets the reduction of all arrays, of one shape. Other ranks get
        None. A whole number in place of `out` is the root: reduce(x, 2)."""
        out, root = self._root_output(array, out, root, arrays.shape)
        call = self._collective
        return call(self, _REDUCE, array, out, op, factor, root, stream, async_op, timeout, codec)

    def broadcast(
        self,
        array: Array,
        root: int = 0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        codec: str | None = None,
    ) -> Any:
        """Copies the root's array to every rank's array, of the same shape."""
        call = self._collective
        return call(
            self, _BROADCAST, array, array, "sum", 1.0, root, stream, async_op, timeout, codec
        )

    def all_gather(
        self,
        array: Array,
        out: Array = None,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        codec: str | None = None,
    ) -> Any:
        """Every rank gets all arrays, of one shape, in the order of ranks: (n, *array.shape)."""
        if out is None:
            out = self._new_output(array, self._stacked_shape)
        call = self._collective
        return call(self, _ALL_GATHER, array, out, "sum", 1.0, 0, stream, async_op, timeout, codec)

    def reduce_scatter(
        self,
        array: Array,
        out: Array = None,
        op: str = "sum",
        factor: float = 1.0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        codec: str | None = None,
    ) -> Any:
        """Rank r gets the r-th of n equal parts, along the first axis, of the reduction of all
        arrays: (array.shape[0] / n, *array.shape[1:])."""
        if out is None:
            out = self._new_output(array, self._block_shape)
        call = self._collective
        return call(
            self, _REDUCE_SCATTER, array, out, op, factor, 0, stream, async_op, timeout, codec
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
        codec: str | None = None,
    ) -> Any:
        """The r-th of n equal parts of each array, along the first axis, goes to rank r. Rank r
        gets its parts in the order of ranks: array.shape.

        Split sizes make the parts unequal; all ranks give them, or none. Part r of the array has
        input_split_sizes[r] rows, and the part from rank r output_split_sizes[r]. The result is
        (sum(output_split_sizes), *array.shape[1:]). A side without split sizes is even. Sender and
        receiver of a part must give the same length.
        """
        if input_split_sizes is not None or output_split_sizes is not None:
            with self._reporting_refusal():
                splits = split_rows(input_split_sizes), split_rows(output_split_sizes)
                if out is None:
                    shape = arrays.shape(array)
                    rows = sum(splits[1]) if splits[1] else shape[0] if shape else 0
                    out = arrays.empty(array, (max(rows, 0), *shape[1:]))
            return self._start(
                _ALL_TO_ALL, array, out, "sum", 1.0, 0, stream, async_op, timeout, codec, splits
            )
        if out is None:
            out = self._new_output(array, self._even_shape)
        call = self._collective
        return call(self, _ALL_TO_ALL, array, out, "sum", 1.0, 0, stream, async_op, timeout, codec)

    def gather(
        self,
        array: Array,
        out: Array = None,
        root: int | None = None,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        codec: str | None = None,
    ) -> Any:
        """The root, 0 if None, gets all arrays, of one shape: (n, *array.shape). Other ranks get
        None. A whole number in place of `out` is the root: gather(x, 2)."""
        out, root = self._root_output(array, out, root, self._stacked_shape)
        call = self._collective
        return call(self, _GATHER, array, out, "sum", 1.0, root, stream, async_op, timeout, codec)

    def scatter(
        self,
        array: Array | None,
        out: Array = None,
        root: int | None = None,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        codec: str | None = None,
    ) -> Any:
        """Every rank gets its part of the array of the root, 0 if None: (n, *out.shape). Other
        ranks give None. Only the root may leave out `out`, because it knows the shape. A whole
        number in place of `out` is the root: scatter(x, 2), scatter(None, 2, out)."""
        out, root = self._out_and_root(out, root)
        given = array if self.rank == root else None
        if out is None and given is not None:
            out = self._new_output(given, lambda array: arrays.shape(array)[1:])
        if out is None:
            with self._reporting_refusal():
                raise _core.InvalidArgumentError(
                    "scatter: expected `out`, an array for this rank's part; got None; only the "
                    "root knows its shape without it"
                )
        call = self._collective
        return call(self, _SCATTER, given, out, "sum", 1.0, root, stream, async_op, timeout, codec)

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Returns when all ranks have called it. Pending work of streams does not count."""
        call = self._collective
        return call(self, _BARRIER, None, None, "sum", 1.0, 0, None, async_op, timeout, None)

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
        """Returns `array` when it may be reused. Large arrays wait for the receiver."""
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
        """Returns `out`, filled by a message of the same length. source: a rank, or None for the
        first sender (host memory only)."""
        self._check_source("recv", source)
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
        """Sends `array` and receives `out` at the same time. Ranks may do it in a ring.

        Returns `out`, a new array like `array` if None. source: as in recv(); recv_tag: `tag` if
        None. A rank may be `to` and `source` itself."""
        tag_of_recv = tag if recv_tag is None else recv_tag
        check_tag(tag)
        check_tag(tag_of_recv)
        self._check_source("sendrecv", source)
        if (source == self.rank) != (to == self.rank):
            raise _core.InvalidArgumentError(
                f"sendrecv: expected this rank ({self.rank}) as both `to` and `source`, or as none "
                f"of them; got {to} and {source}"
            )
        if out is None:
            out = arrays.empty(array, arrays.shape(array))
        elif out is array or _core.share_memory(array, out):
            raise _core.InvalidArgumentError(
                "sendrecv: expected `out` apart from the array that is sent; got one that shares "
                "memory with it; pass a copy"
            )
        if to == source == self.rank:
            return self._single().all_gather(array, out, stream, async_op, timeout)
        sent = self.send(array, to, tag=tag, stream=stream, async_op=True, timeout=timeout)
        got = self.recv(out, source, tag=tag_of_recv, stream=stream, async_op=True, timeout=timeout)
        return _result(got.combined_with(sent), async_op)

    def _check_source(self, call: str, source: Any) -> None:
        """Raises InvalidArgumentError for a source that no message can have."""
        if source is None and self._on_device:
            raise _core.InvalidArgumentError(
                f"{call}: expected a rank where arrays are on devices, got None; name the sender"
            )
        if source is not None and not 0 <= whole_number("source", source) < self.size:
            raise _core.InvalidArgumentError(
                f"{call}: expected a rank from 0 to {self.size - 1}, or None for any; got {source}"
            )

    @contextmanager
    def _reporting_refusal(self) -> Iterator[None]:
        """Tells the other ranks, which may wait in this collective, why this rank refused it."""
        try:
            yield
        except Exception as error:  # also of the array's library, such as MemoryError
            self._report_refusal(error)
            raise

    def _report_refusal(self, error: Exception) -> None:
        refused = isinstance(error, _core.InvalidArgumentError)
        self._communicator.report_refusal(
            str(error) if refused else f"{type(error).__name__}: {error}"
        )

    def _new_output(self, array: Array, shape_of: ShapeOf) -> Array:
        with self._reporting_refusal():
            return arrays.empty(array, shape_of(array))

    def _root_output(self, array: Array, out: Any, root: Any, shape_of: ShapeOf) -> tuple[Any, int]:
        """`out`, None on all ranks but the root, and the root."""
        out, root = self._out_and_root(out, root)
        if self.rank != root:
            return None, root
        return self._new_output(array, shape_of) if out is None else out, root

    def _out_and_root(self, out: Any, root: Any) -> tuple[Array, int]:
        if type(root) is int and not isinstance(out, Number):
            return out, root  # the usual call, with few checks
        with self._reporting_refusal():
            return out_and_root(out, root)

    def _stacked_shape(self, array: Array) -> tuple[int, ...]:
        return (self.size, *arrays.shape(array))

    def _even_shape(self, array: Array) -> tuple[int, ...]:
        """The array's own shape. Raises InvalidArgumentError without `size` equal parts."""
        shape = arrays.shape(array)
        if shape and shape[0] % self.size == 0:
            return shape
        raise _core.InvalidArgumentError(
            f"reduce_scatter, all_to_all: expected a first axis of {self.size} equal parts, got "
            f"shape {shape}; pad the array, or give `out` to cut it as it lies in memory"
        )

    def _block_shape(self, array: Array) -> tuple[int, ...]:
        first, *rest = self._even_shape(array)
        return (first // self.size, *rest)

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
        codec: str | None,
        splits: tuple[list[int], list[int]] | None = None,
    ) -> Any:
        if codec is not None:
            with self._reporting_refusal():
                inside = codec_of_calls(codec)
            with inside:
                return self._start(
                    collective, array, out, op, factor, root, stream, async_op, timeout, None,
                    splits,
                )  # fmt: skip
        chosen = OPERATIONS.get(op) if isinstance(op, str) else None
        if chosen is None:
            with self._reporting_refusal():
                op = name_of(op, array)
            return self._collective(
                self, collective, array, out, op, factor, root, stream, async_op, timeout, None
            )
        try:
            root, factor = rank_number("root", root), real_number("factor", factor)
            timeout = timeout_of(timeout)
            given, result, write_back = self._packed(array, out)
        except Exception as error:  # costs less than `with`
            self._report_refusal(error)
            raise
        order, dlpack = self._streams(result if given is None else given, stream)
        work = _core.start_collective(
            self._communicator, _core.Collective(collective), given, result, chosen, factor, root,
            not async_op, timeout, order, dlpack, splits,
        )  # fmt: skip
        return _result(Work(work, out, order, write_back), async_op)

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
        peer, timeout = rank_number("rank", peer), timeout_of(timeout)
        receives = direction == _core.Collective.recv
        memory, write_back = array, None
        if not self._on_device and receives:
            _, memory, write_back = strided.packed(None, array)
        elif not self._on_device:
            memory, _, _ = strided.packed(array, None)
        order, dlpack = self._streams(memory, stream)
        work = _core.start_message(
            self._communicator, direction, memory, peer, tag, not async_op, timeout, order, dlpack
        )
        return _result(Work(work, array, order, write_back), async_op)

    def _packed(self, array: Array, out: Array) -> tuple[Array, Array, strided.WriteBack | None]:
        """Leaves device arrays as they are: their library would copy them in its own streams."""
        if self._on_device:
            return array, out, None
        return strided.packed(array, out)

    def _streams(self, array: Array, stream: Any) -> tuple[int | None, int | None]:
        """The stream of the call and its DLPack name; None for host memory or without an array."""
        if not self._on_device or array is None:
            return None, None
        with self._reporting_refusal():
            pointer = arrays.pointer(arrays.current_stream(array) if stream is None else stream)
        vendor = self._communicator.topology.rank(self.rank).vendor
        return pointer, pointer or vendors()[vendor]["python"]["default_stream"]
