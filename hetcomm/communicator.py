"""The array API: collectives and messages of NumPy, CuPy, torch and any other DLPack arrays."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from hetcomm import _core, rendezvous
from hetcomm.collectives import Collectives
from hetcomm.objects import Objects
from hetcomm.shared import shared_empty


class Communicator(Collectives, Objects):
    """A group of ranks and everything they do together.

    All ranks make the same calls in the same order, with arrays of the same dtype. Arrays are used
    in place if C-contiguous; others of NumPy and torch in host memory are copied, and results are
    copied back. `out` is made if it is None, and returned. reduce(x, 2), gather(x, 2) and
    scatter(x, 2, out) name the root by position. With async_op=True a call returns a
    Work, whose wait() returns what the call would have. `timeout`, in seconds, is the
    communicator's if None. Every call may raise hetcomm.Error: InvalidArgumentError for wrong
    arguments, PeerFailedError naming a rank that is gone, TimeoutError, AbortedError.

    Numbers are reduced as the README says; complex ones by "sum" and "avg" only. `op` is "sum",
    "product", "min", "max", "band", "bor", "bxor", "avg", or "premul_sum", the sum of what each
    rank gives, times `factor`; or mpi4py's MPI.SUM, PROD, MIN, MAX, BAND, BOR, BXOR, and of
    booleans LAND, LOR, LXOR.

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
        self._alone: Self | None = None
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
        environment: Mapping[str, str] | None = None,
        *,
        timeout: float = 1800.0,
        device: str = "",
    ) -> Self:
        """Of all processes that a launcher has started: torchrun, srun, mpiexec, or anything that
        sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; of this process alone if none has.

        Args:
            environment: this process's if None.

        Raises:
            InvalidArgumentError: the environment says too little, or contradicts itself.
        """
        if environment is None:
            environment = os.environ
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

    def split(self, color: int | None, key: int = 0) -> Self | None:
        """One new communicator for each color, of the ranks that give it, ordered by `key`, then by
        rank. Called by all ranks; those that give None get None."""
        self._core.check_process()  # before the store, whose connection a child of fork() shares
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

    def _single(self) -> Self:
        """A group of this rank alone."""
        if self._alone is None:
            self._alone = type(self)(
                _core.LocalStore(), 0, 1, name=f"{self._name}/{self.rank}", timeout=self._timeout,
                device=self._device,
            )  # fmt: skip
        return self._alone

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """An array that the ranks of this host read in place, see hetcomm.shared_empty().

        Raises:
            InvalidArgumentError: the communicator is on a device, or as shared_empty() says.
            VendorError: there is not so much memory.
        """
        if self._on_device:
            raise _core.InvalidArgumentError(
                "empty: expected a communicator on host memory; make arrays of a device with "
                "its own library"
            )
        return shared_empty(shape, dtype)

    @property
    def topology(self) -> _core.Topology:
        """Hosts, islands and links as all ranks agreed on them."""
        return self._core.topology

    def path_to(self, peer: int) -> str:
        """What carries messages to another rank, in words."""
        return str(self._core.path_to(peer))

    @contextmanager
    def trace(self) -> Iterator[list[_core.Trace]]:
        """Records when the steps of every operation inside start and end; costs them little. The
        list is filled at the end, with a Trace of each operation that is over by then, in the order
        of their calls. An operation's own: see Work.spans()."""
        traces: list[_core.Trace] = []
        self._core.begin_trace()
        try:
            yield traces
        finally:
            traces += self._core.end_trace()

    def abort(self, reason: str = "abort() was called") -> None:
        """Ends every operation on every rank with AbortedError; never blocks for long."""
        self._core.abort(reason)

    def close(self) -> None:
        """Leaves the group; what was sent is delivered. Later calls fail."""
        if self._alone is not None:
            self._alone.close()
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
