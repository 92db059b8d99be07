"""The array API: collectives and messages of arrays of NumPy, CuPy, torch and others."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from hetcomm import _core, diagnosis, rendezvous
from hetcomm._vendors import vendors
from hetcomm.arguments import rank_number, timeout_of, whole_number
from hetcomm.collectives import Collectives
from hetcomm.objects import Objects, Seals
from hetcomm.shared import shared_empty

diagnosis.tell_warnings()

_LATE = 30.0  # seconds; a failed rank keeps the store so long for ranks that start later


def _check(device: str, timeout: float) -> None:
    """Raises InvalidArgumentError unless this names a device, and is a timeout."""
    timeout_of(timeout)
    if not isinstance(device, str) or not re.fullmatch(
        rf"|cpu|({'|'.join(vendors())})(:\d+)?", device
    ):
        names = " or ".join(f'"{name}"' for name in ["cpu", *vendors()])
        raise _core.InvalidArgumentError(
            f'device: expected {names}, or which one, "{list(vendors())[-1]}:1"; got "{device}"'
        )


class Communicator(Collectives, Objects):
    """A group of ranks with its collectives and messages.

    All ranks make the same calls in the same order, with arrays of the same dtype. C-contiguous
    arrays are used in place. Other host arrays of NumPy and torch are copied, and results are
    copied back. A call returns `out`, a new array if None. reduce(x, 2), gather(x, 2) and
    scatter(x, 2, out) name the root by position. With async_op=True a call returns a Work, whose
    wait() returns the result. `timeout` is in seconds; None is the communicator's. Every call may
    raise hetcomm.Error: InvalidArgumentError for wrong arguments, PeerFailedError with the failed
    rank, TimeoutError, AbortedError.

    Numbers are reduced as the README says; complex ones by "sum" and "avg" only. `op` is "sum",
    "product", "min", "max", "band", "bor", "bxor", "avg", or "premul_sum", the sum of what each
    rank gives, times `factor`; or mpi4py's MPI.SUM, PROD, MIN, MAX, BAND, BOR, BXOR, and of
    booleans LAND, LOR, LXOR.

    A communicator on a device takes arrays of that device. Calls then follow the order of `stream`:
    a number, or a stream of CuPy, torch or cuda.core; None is the current stream of the array's
    library, or the one that the array's __cuda_array_interface__ names. The host waits only until
    the rest of a call is in streams. Thread-safe; the user decides the order of calls.
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
        """Joins; blocks until all ranks have joined.

        Args:
            store: where the ranks meet, derived from hetcomm.Store. split() uses it too.
            timeout: seconds for the set-up, and for operations without their own.
            device: of the arrays: "cpu", "nvidia" or "amd"; "amd:1" is the second one. "" is
                HETCOMM_VENDOR, else "cpu".
        """
        _check(device, timeout)
        rank, size = rank_number("rank", rank), rank_number("size", size)
        vendor, _, index = device.partition(":")
        self._store, self._name, self._timeout, self._device = store, name, timeout, device
        self._splits = 0
        self._alone: Self | None = None
        self._communicator = _core.Communicator(
            store, rank, size, timeout, name, vendor=vendor, device=int(index) if index else -1
        )
        self.rank: int = rank
        self.size: int = size
        self._on_device = self._communicator.topology.rank(rank).memory == _core.Memory.device
        self._seals = Seals(self._communicator.key("hetcomm objects"))
        # Its first argument serves all but synchronous host calls, by _start().
        self._collective = _core.collective_call(self._communicator)
        self.barrier()  # afterwards the store's server may end

    @classmethod
    def from_env(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        timeout: float = 1800.0,
        device: str = "",
    ) -> Self:
        """Joins all processes of a launcher: torchrun, srun, mpiexec, or any that sets RANK,
        WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without a launcher, this process is alone.

        Args:
            environment: this process's if None.

        Raises:
            InvalidArgumentError: the environment is incomplete or contradictory.
        """
        _check(device, timeout)
        if environment is None:
            environment = os.environ
        job = rendezvous.job_of(environment)
        if job is None:
            return cls(_core.LocalStore(), 0, 1, timeout=timeout, device=device)
        store = rendezvous.open_store(job, environment, timeout)
        return cls._join(store, job.rank, job.size, timeout, device)

    @classmethod
    def from_mpi(cls, comm: Any, *, timeout: float = 1800.0, device: str = "") -> Self:
        """Joins the processes of an mpi4py communicator, in its order."""
        _check(device, timeout)
        store = rendezvous.store_of_mpi(comm, timeout)
        return cls._join(store, comm.Get_rank(), comm.Get_size(), timeout, device)

    @classmethod
    def _join(cls, store: _core.Store, rank: int, size: int, timeout: float, device: str) -> Self:
        """Joins by a store that this process may serve. After a failure other ranks read it
        first."""
        began = time.monotonic()
        try:
            return cls(store, rank, size, timeout=timeout, device=device)
        except _core.Error as error:
            late = began + min(timeout, _LATE) - time.monotonic()
            rendezvous.wait_for_late_ranks(store, size, error, late)
            rendezvous.wait_for_readers()
            raise

    @classmethod
    def from_store(
        cls, store: Any, rank: int, size: int, *, timeout: float = 1800.0, device: str = ""
    ) -> Self:
        """Joins ranks that reach one store: hetcomm.TcpStore, a store of torch, or a class derived
        from hetcomm.Store. Each group needs its own keys: see hetcomm.PrefixStore."""
        if not isinstance(store, _core.Store):
            if not all(hasattr(store, name) for name in ("set", "get", "check")):
                raise _core.InvalidArgumentError(
                    "store: expected hetcomm.TcpStore, a store of torch or a class derived from "
                    f"hetcomm.Store; got a {type(store).__name__}"
                )
            store = rendezvous.TorchStore(store, timeout)
        return cls(store, rank, size, timeout=timeout, device=device)

    def split(self, color: int | None, key: int = 0) -> Self | None:
        """Makes a communicator for each color, of its ranks ordered by `key`, then by rank. All
        ranks call it. Ranks with color None get None."""
        self._communicator.check_process()  # a child of fork() shares the store's connection
        mine = "none"
        if color is not None:
            with self._reporting_refusal():
                mine = f"{whole_number('color', color)} {whole_number('key', key)}"
        number, self._splits = self._splits, self._splits + 1
        store = self._communicator.sealed(self._store)
        store.set(f"split/{number}/{self.rank}", mine.encode())
        self.barrier()  # reports a dead rank, which the store does not
        chosen = []
        for rank in range(self.size):
            value = store.get(f"split/{number}/{rank}", rendezvous.seconds(self._timeout))
            if value != b"none":
                theirs, at = map(int, value.split())
                chosen.append((theirs, at, rank))
        made = None if color is None else self._group_of(chosen, color, number)
        self.barrier()  # keeps the store's server until all ranks have read
        store.delete_key(f"split/{number}/{self.rank}")
        return made

    def _group_of(self, chosen: list[tuple[int, int, int]], color: int, number: int) -> Self:
        """The group of a color. chosen: (color, key, rank) of all ranks."""
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
        """A group with this rank only."""
        if self._alone is None:
            self._alone = type(self)(
                _core.LocalStore(), 0, 1, name=f"{self._name}/{self.rank}", timeout=self._timeout,
                device=self._device,
            )  # fmt: skip
        return self._alone

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """An array that ranks of this host read in place; see hetcomm.shared_empty().

        Raises:
            InvalidArgumentError: the communicator is on a device, or as shared_empty() says.
            VendorError: memory is exhausted.
        """
        if self._on_device:
            raise _core.InvalidArgumentError(
                "empty: expected a communicator on host memory; make arrays of a device with "
                "its own library"
            )
        return shared_empty(shape, dtype)

    @property
    def topology(self) -> _core.Topology:
        """The hosts, islands and links on which all ranks agreed."""
        return self._communicator.topology

    def path_to(self, peer: int) -> str:
        """Describes the transport to another rank."""
        return str(self._communicator.path_to(rank_number("rank", peer)))

    @contextmanager
    def trace(self) -> Iterator[list[_core.Trace]]:
        """Records start and end of the steps of every operation inside, at little cost. At the end
        the list gets a Trace of each completed operation, in the order of calls. Work.spans() has
        the steps of one operation."""
        traces: list[_core.Trace] = []
        self._communicator.begin_trace()
        try:
            yield traces
        finally:
            traces += self._communicator.end_trace()

    def abort(self, reason: str = "abort() was called") -> None:
        """Fails every operation on every rank with AbortedError. Never blocks for long."""
        self._communicator.abort(reason)

    def close(self) -> None:
        """Leaves the group, after sent data is delivered. Later calls fail."""
        if self._alone is not None:
            self._alone.close()
        self._communicator.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leaves the group. After an exception, aborts it, so no rank waits for this one."""
        in_order = isinstance(error, _core.Error | GeneratorExit) or (
            isinstance(error, SystemExit) and error.code in (None, 0)
        )
        if error is not None and not in_order:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.size}, {len(self.topology.islands)} islands"
        return f"<hetcomm.Communicator {self._name}: {place}>"
