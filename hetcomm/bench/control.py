"""Exchange of values between ranks over a store, outside the measured backends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hetcomm import _core, rendezvous
from hetcomm.bench.error import BenchError

PATIENCE = 5.0  # seconds that a failed rank waits for other ranks to read its error


class ControlChannel:
    """A channel between all ranks. All ranks make the same calls in the same order. `timeout`
    seconds bound every wait."""

    def __init__(
        self, store: _core.Store, rank: int, size: int, timeout: float, address: str = ""
    ) -> None:
        """address: of rank 0's host, if a launcher gave it."""
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.address = address
        self.failure_shared = False  # all ranks know of a failure
        self._number = 0

    @classmethod
    def of_job(cls, environment: Mapping[str, str], timeout: float) -> ControlChannel | None:
        """For the job of a launcher; None without a launcher."""
        job = rendezvous.job_of(environment)
        if job is None:
            return None
        store = rendezvous.open_store(job, environment, timeout)
        part = rendezvous.PrefixStore(store, "bench/")
        return cls(part, job.rank, job.size, timeout, job.address)

    def leave(self) -> None:
        """Called at the end on all ranks. Rank 0 may serve the store, so it waits until other ranks
        have read the last values."""
        if self._world() is not None:
            self._world().Barrier()  # while MPI ends, no Python thread serves the store
        elif self.rank == 0:
            rendezvous.wait_for_readers()

    def abandon(self, status: int) -> None:
        """Called after a failure that other ranks may not know. Under MPI, ends all ranks, because
        MPI would wait for other ranks forever."""
        if self._world() is not None:
            self._world().Abort(status)
        else:
            self.leave()

    def _world(self) -> Any:
        """MPI's world communicator, if these ranks have started MPI."""
        MPI = getattr(sys.modules.get("mpi4py"), "MPI", None)
        return MPI.COMM_WORLD if MPI is not None and MPI.COMM_WORLD.size == self.size else None

    def part(self, name: str) -> rendezvous.PrefixStore:
        """A separate store for a backend."""
        return rendezvous.PrefixStore(self.store, f"{name}/")

    def gather(self, mine: Any) -> list[Any]:
        """Returns every rank's value on all ranks, by rank. Values are JSON."""
        return self.run_on_all(lambda: mine)

    def run_on_all(self, action: Callable[[], Any]) -> list[Any]:
        """Runs `action` on every rank and returns all results, by rank. If it fails on one rank,
        all ranks raise that error, unless they time out first."""
        number, self._number = self._number, self._number + 1
        try:
            outcome: dict[str, Any] = {"value": action()}
        except Exception as error:
            outcome = {
                "error": str(error),
                "invalid": isinstance(error, _core.InvalidArgumentError),
            }
            with suppress(_core.Error):  # other ranks may be stuck inside the action
                self._exchange(number, outcome, PATIENCE)
                self.failure_shared = True
            raise
        everything = self._exchange(number, outcome, self.timeout)
        for rank, each in enumerate(everything):
            if "error" in each:
                self.failure_shared = True
                said: str = each["error"]
                if each["invalid"]:  # alike on all ranks
                    raise _core.InvalidArgumentError(said)
                raise BenchError(f"rank {rank}: {said}")
        return [each["value"] for each in everything]

    def _exchange(self, number: int, mine: Any, timeout: float) -> list[Any]:
        """Returns the values of all ranks. Raises TimeoutError if a rank is missing."""

        def get(key: str) -> Any:
            return json.loads(bytes(self.store.get(key, timedelta(seconds=timeout))))

        self.store.set(f"{number}/{self.rank}", json.dumps(mine).encode())
        if self.rank > 0:
            everything: list[Any] = get(f"{number}/all")
            return everything
        everything = [mine] + [get(f"{number}/{rank}") for rank in range(1, self.size)]
        self.store.set(f"{number}/all", json.dumps(everything).encode())
        return everything
