"""Where the ranks of a job talk beside what is measured: over a store, and none of the backends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hetcomm import _core, rendezvous
from hetcomm.bench.error import BenchError

PATIENCE = 5.0  # seconds that a rank which has failed waits for the others to hear of it


class Meeting:
    """All ranks make the same calls in the same order. Every wait is at most `timeout` seconds."""

    def __init__(
        self, store: _core.Store, rank: int, size: int, timeout: float, address: str = ""
    ) -> None:
        """address: of rank 0's host, if a launcher told it."""
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.address = address
        self.told = False  # a failure was told to all ranks
        self._number = 0

    @classmethod
    def of_job(cls, environment: Mapping[str, str], timeout: float) -> Meeting | None:
        """Of the job that a launcher has started; None if none has."""
        job = rendezvous.job_of(environment)
        if job is None:
            return None
        store = rendezvous.open_store(job, environment, timeout)
        part = rendezvous.PrefixStore(store, "bench/")
        return cls(part, job.rank, job.size, timeout, job.address)

    def leave(self) -> None:
        """Once all ranks have come to their end, in whatever way they know: rank 0, whose process
        may serve the store, stays until the others have read what was last told."""
        if self._world() is not None:
            self._world().Barrier()  # while MPI ends, no thread of Python's serves anything
        elif self.rank == 0:
            rendezvous.let_others_read()

    def abandon(self, status: int) -> None:
        """After a failure that the others may not hear of. Where MPI would have this rank wait for
        them forever, it ends them all."""
        if self._world() is not None:
            self._world().Abort(status)
        else:
            self.leave()

    def _world(self) -> Any:
        """MPI's communicator of these ranks, if they have started MPI."""
        MPI = getattr(sys.modules.get("mpi4py"), "MPI", None)
        return MPI.COMM_WORLD if MPI is not None and MPI.COMM_WORLD.size == self.size else None

    def part(self, name: str) -> rendezvous.PrefixStore:
        """A store of its own for a backend."""
        return rendezvous.PrefixStore(self.store, f"{name}/")

    def gather(self, mine: Any) -> list[Any]:
        """What each rank gives, by rank, on all of them; anything that JSON has."""
        return self.together(lambda: mine)

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Runs `action` on every rank; what each returned, by rank. Raises on all ranks what failed
        on one, unless that waits for others in vain."""
        number, self._number = self._number, self._number + 1
        try:
            told: dict[str, Any] = {"value": action()}
        except Exception as error:
            told = {"error": str(error), "invalid": isinstance(error, _core.InvalidArgumentError)}
            with suppress(_core.Error):  # others may wait in vain, for what has failed here
                self._exchange(number, told, PATIENCE)
                self.told = True
            raise
        everything = self._exchange(number, told, self.timeout)
        for rank, each in enumerate(everything):
            if "error" in each:
                self.told = True
                said: str = each["error"]
                if each["invalid"]:  # alike on all ranks
                    raise _core.InvalidArgumentError(said)
                raise BenchError(f"rank {rank}: {said}")
        return [each["value"] for each in everything]

    def _exchange(self, number: int, mine: Any, timeout: float) -> list[Any]:
        """What all ranks tell, by rank. Raises TimeoutError where one does not come."""

        def get(key: str) -> Any:
            return json.loads(bytes(self.store.get(key, timedelta(seconds=timeout))))

        self.store.set(f"{number}/{self.rank}", json.dumps(mine).encode())
        if self.rank > 0:
            everything: list[Any] = get(f"{number}/all")
            return everything
        everything = [mine] + [get(f"{number}/{rank}") for rank in range(1, self.size)]
        self.store.set(f"{number}/all", json.dumps(everything).encode())
        return everything
