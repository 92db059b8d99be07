"""The array API: collectives and messages of NumPy, CuPy, torch and any other DLPack arrays."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from hetcomm import _core, arrays, rendezvous
from hetcomm.arrays import Array
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
_OPS = {name.replace("average", "avg"): op for name, op in _core.ReduceOp.__members__.items()}


class Communicator:
    """A group of ranks and everything they do together.

    All ranks make the same calls in the same order, with arrays of the same dtype. Arrays are
    C-contiguous; `out` is made if it is None, and returned. With async_op=True a call returns a
    Work, whose wait() returns what the call would have. `timeout`, in seconds, is the
    communicator's if None. Every call may raise hetcomm.Error: InvalidArgumentError for wrong
    arguments, PeerFailedError naming a rank that is gone, TimeoutError, AbortedError.

    Numbers are reduced as the README says; complex ones by "sum" and "avg" only. `op` is "sum",
    "product", "min", "max", "band", "bor", "bxor", "avg", or "premul_sum", the sum of what each
    rank gives, times `factor`.

    A communicator on a device takes arrays of that device. Calls are then in the order of `stream`
    (a number, or a stream of CuPy or torch; the current one of the array's library if None) and
    the host goes on at once. Thread-safe, but the order of calls is the user's matter.
    """

    def __init__(
        self,
        store: _core.Store,
        rank: int,
        size: int,
        *,
        name: str = "world",
        timeout: float = 1800.0,
        device: str = "",
    ) -> None:
        """Joins; blocks until all ranks have come.

        Args:
            store: where the ranks meet: anything derived from hetcomm.Store, kept for split().
            timeout: seconds for the set-up, and for operations that have none of their own.
            device: whose memory arrays are in: "cpu", "nvidia", "amd", with ":1" the second
                one; HETCOMM_VENDOR if empty, else "cpu".
        """
        vendor, _, index = device.partition(":")
        if not re.fullmatch(r"|cpu|(nvidia|amd)(:\d+)?", device):
            raise _core.InvalidArgumentError(
                f'device: expected "cpu", "nvidia" or "amd", or which one, "amd:1"; got "{device}"'
            )
        self._store, self._name, self._timeout, self._device = store, name, timeout, device
        self._splits = 0
        self._core = _core.Communicator(
            store, rank, size, timeout, name, vendor=vendor, device=int(index) if index else -1
        )
        self.rank: int = rank
        self.size: int = size
        self._on_device = self._core.topology.rank(rank).memory == _core.Memory.device
        # The first argument is what it calls _start() of, for all but synchronous calls on hosts.
        self._collective = _core.collective_call(self._core)
        self.barrier()  # the store's server may end once nobody reads it any more

    @classmethod
    def from_env(
        cls,
        environment: Mapping[str, str] = os.environ,
        *,
        timeout: float = 1800.0,
        device: str = "",
    ) -> Self:
        """Of all processes that a launcher has started: torchrun, srun, mpiexec, or anything that
        sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; of this process alone if none has.

        Raises:
            InvalidArgumentError: the environment says too little, or contradicts itself.
        """
        job = rendezvous.job_of(environment)
        if job is None:
            return cls(_core.LocalStore(), 0, 1, timeout=timeout, device=device)
        store = rendezvous.open_store(job, environment, timeout)
        return cls._served(store, job.rank, job.size, timeout, device)

    @classmethod
    def from_mpi(cls, comm: Any, *, timeout: float = 1800.0, device: str = "") -> Self:
        """Of the processes of an mpi4py communicator, in its order."""
        store = rendezvous.store_of_mpi(comm, timeout)
        return cls._served(store, comm.Get_rank(), comm.Get_size(), timeout, device)

    @classmethod
    def _served(cls, store: _core.Store, rank: int, size: int, timeout: float, device: str) -> Self:
        """Whose store is perhaps served by this process, which may end if this fails."""
        try:
            return cls(store, rank, size, timeout=timeout, device=device)
        except _core.Error:
            rendezvous.let_others_read()
            raise

    @classmethod
    def from_store(
        cls, store: Any, rank: int, size: int, *, timeout: float = 1800.0, device: str = ""
    ) -> Self:
        """Of ranks that reach one store: hetcomm.TcpStore, torch's TCPStore and its kin, or one's
        own that is derived from hetcomm.Store. Each group needs keys of its own: see
        hetcomm.PrefixStore.
        """
        if not isinstance(store, _core.Store):
            store = rendezvous.TorchStore(store)
        return cls(store, rank, size, timeout=timeout, device=device)

    # Collectives. "n" is the number of ranks.

    def all_reduce(
        self,
        array: Array,
        out: Array = None,
        *,
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
        *,
        root: int = 0,
        op: str = "sum",
        factor: float = 1.0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The root gets the reduction of all arrays, which have one shape; the others None."""
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
        *,
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
        *,
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
        *,
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
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The r-th of n equal parts of each array, along the first axis, goes to rank r, which gets
        them in the order of ranks: array.shape."""
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
        *,
        root: int = 0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The root gets all arrays, of one shape: (n, *array.shape); the others None."""
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
        *,
        root: int = 0,
        stream: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Every rank gets its part of the root's array, which is (n, *out.shape); the others give
        None. `out` may be left away on the root only, which alone knows the shape."""
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
        peer = -1 if source is None else source
        return self._message(_core.Collective.recv, out, peer, tag, stream, async_op, timeout)

    # The group.

    def split(self, color: int | None, key: int = 0) -> Self | None:
        """One new communicator for each color, of the ranks that give it, ordered by `key`, then by
        rank. Called by all ranks; those that give None get None."""
        mine = "none" if color is None else f"{operator.index(color)} {operator.index(key)}"
        number, self._splits = self._splits, self._splits + 1
        self._store.set(f"split/{number}/{self.rank}", mine.encode())
        self.barrier()  # which tells of a rank that is gone, as the store does not
        chosen = []
        for rank in range(self.size):
            value = self._store.get(f"split/{number}/{rank}", rendezvous.seconds(self._timeout))
            if value != b"none":
                theirs, at = map(int, value.split())
                chosen.append((theirs, at, rank))
        made = None if color is None else self._group_of(chosen, color, number)
        self.barrier()  # nobody ends the store's server while others still read it
        return made

    def _group_of(self, chosen: list[tuple[int, int, int]], color: int, number: int) -> Self:
        """The group of a color, of (color, key, rank) of all."""
        ranks = [rank for theirs, _, rank in sorted(chosen) if theirs == color]
        store = rendezvous.PrefixStore(self._store, f"split/{number}/color/{color}/")
        name = f"{self._name}/{number}:{color}"
        return type(self)(
            store,
            ranks.index(self.rank),
            len(ranks),
            name=name,
            timeout=self._timeout,
            device=self._device,
        )

    @property
    def topology(self) -> _core.Topology:
        """Hosts, islands and links as all ranks agreed on them."""
        return self._core.topology

    def path_to(self, peer: int) -> str:
        """What carries messages to another rank, in words."""
        return str(self._core.path_to(peer))

    def abort(self, reason: str = "abort() was called") -> None:
        """Ends every operation on every rank with AbortedError; never blocks for long."""
        self._core.abort(reason)

    def close(self) -> None:
        """Leaves the group; what was sent is delivered. Later calls fail."""
        self._core.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leaves; after an exception the others are told of it, whatever they wait for."""
        in_order = isinstance(error, _core.Error | GeneratorExit) or (
            isinstance(error, SystemExit) and error.code in (None, 0)
        )
        if error is not None and not in_order:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.size}, {len(self.topology.islands)} islands"
        return f"<hetcomm.Communicator {self._name}: {place}>"

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """The others, who may wait for this rank in a collective, hear why it has refused it."""
        try:
            yield
        except _core.InvalidArgumentError as error:
            self._core.refused(str(error))
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
    ) -> Any:
        chosen = _OPS.get(op)
        if chosen is None:
            with self._telling():
                raise _core.InvalidArgumentError(
                    f'op: expected one of {", ".join(_OPS)}; got "{op}"'
                )
        order, dlpack = self._streams(out if array is None else array, stream)
        work = _core.start_collective(
            self._core, _core.Collective(collective), array, out, chosen, factor, root, timeout,
            order, dlpack,
        )  # fmt: skip
        return self._finish(work, out, order, async_op)

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
        if not 0 <= tag < 65536:
            raise _core.InvalidArgumentError(f"tag: expected 0 to 65535, got {tag}")
        order, dlpack = self._streams(array, stream)
        work = _core.start_message(
            self._core, direction, array, peer, tag, not async_op, timeout, order, dlpack
        )
        return self._finish(work, array, order, async_op)

    def _finish(self, work: _core.Work, result: Array, order: int | None, async_op: bool) -> Any:
        if async_op:
            return Work(work, result, order)
        if order is None:
            work.wait()
        else:
            work.order(order)
        return result

    def _streams(self, array: Array, stream: Any) -> tuple[int | None, int | None]:
        """The stream of the call, and how DLPack names it; neither in host memory, nor
        without an array."""
        if not self._on_device or array is None:
            return None, None
        pointer = arrays.pointer(arrays.current_stream(array) if stream is None else stream)
        default = 1 if self._core.topology.rank(self.rank).vendor == "nvidia" else 0
        return pointer, pointer or default
