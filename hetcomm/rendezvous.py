"""Rendezvous of a job: the variables of launchers, and stores for all ranks."""

from __future__ import annotations

import logging
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

from hetcomm import _attempts, _core
from hetcomm.bounded_call import ANSWER_SECONDS, BoundedCall, StoreTimeoutError
from hetcomm.store_server import TcpStoreServer
from hetcomm.tcp_store import TcpStore

# Rank and size by launcher. A launcher inside another one precedes it.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpiexec
    ("PMI_RANK", "PMI_SIZE"),  # MPICH's, Intel's
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun, which may keep the job's SLURM_NTASKS
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun
)
# Variables that only a rank has, without its number of ranks.
_OF_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_RANK")
_REMEDY = (
    "start with torchrun, srun or mpiexec, set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or "
    "none of a rank's variables for one process alone"
)
# Steps of Slurm that have no ranks: none, that of salloc's shell, and that of sbatch's script.
_NOT_BY_SRUN = (None, "4294967290", "4294967291")
# Below the usual range of outgoing connections. Under Slurm the port follows from the job, so jobs
# on one host have different ports.
PORTS = range(20_000, 30_000)
_READERS = 3.0  # seconds for other ranks to read the reason of a failure


@dataclass(frozen=True, slots=True)
class Job:
    """One process of a job. address, port: of the store; "" if only MPI knows it. name: where the
    port follows from the job, because another job may have the same port."""

    rank: int
    size: int
    address: str = ""
    port: int = 0
    name: str = ""


def job_of(environment: Mapping[str, str]) -> Job | None:
    """The job of the launcher; None without a launcher. Raises InvalidArgumentError."""
    names = next((names for names in _LAUNCHERS if _started(names, environment)), None)
    if names is None:
        if left := [name for name in _OF_RANKS if name in environment]:
            raise _core.InvalidArgumentError(
                f"expected a rank and a number of ranks beside {left[0]}, got none; {_REMEDY}"
            )
        return None
    rank, size = (whole_number(environment, name) for name in names)
    if not rank < size < 1 << 31:
        raise _core.InvalidArgumentError(
            f"expected {names[0]} below {names[1]}, and fewer than 2^31 ranks; got {rank} and "
            f"{size}; {_REMEDY}"
        )
    if "MASTER_ADDR" in environment or "MASTER_PORT" in environment or names[0] == "RANK":
        port = whole_number(environment, "MASTER_PORT")
        if not 0 < port < 65536:
            raise _core.InvalidArgumentError(f"MASTER_PORT: expected 1 to 65535, got {port}")
        address = _text(environment, "MASTER_ADDR")
        return Job(rank, size, address.removeprefix("[").removesuffix("]"), port)  # "[::1]"
    if names[0] == "SLURM_PROCID":
        job, step = (whole_number(environment, f"SLURM_{name}_ID") for name in ("JOB", "STEP"))
        host = first_host(_text(environment, "SLURM_STEP_NODELIST"))
        port = PORTS[(job * 64 + step) % len(PORTS)]
        return Job(rank, size, host, port, f"job {job}, step {step} of Slurm")
    return Job(rank, size)


def _started(names: tuple[str, str], environment: Mapping[str, str]) -> bool:
    """Whether the launcher with these variables of rank and size started this process."""
    rank, size = names
    step = environment.get("SLURM_STEP_ID") not in _NOT_BY_SRUN
    if rank == "SLURM_PROCID":
        # A script of sbatch is number 0, too, and an allocation's shell knows the size. Only srun
        # starts a step.
        rank_of_step = step or environment.get(rank, "0") != "0"
        return rank_of_step and (size in environment or names == _LAUNCHERS[-1])
    # `srun --mpi=pmi2` sets PMI's too. Only Slurm's give an address.
    by_srun = (
        rank == "PMI_RANK"
        and step
        and "MPI_LOCALRANKID" not in environment
        and environment.get(rank) == environment.get("SLURM_PROCID")
        and environment.get(size) in (environment.get(found) for _, found in _LAUNCHERS[-2:])
    )
    return not by_srun and (rank in environment or size in environment)


def first_host(nodes: str) -> str:
    """The first host of Slurm's list: node03 of "node[03-07,12],login"."""
    found = re.match(r"([^,\[]*)(?:\[(\d+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


def _text(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise _core.InvalidArgumentError(
            f"expected {name}, which is {'empty' if name in environment else 'not set'}; {_REMEDY}"
        )
    return environment[name]


def whole_number(environment: Mapping[str, str], name: str) -> int:
    """The value of a launcher's variable. Raises InvalidArgumentError without a whole number."""
    text = _text(environment, name)
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise _core.InvalidArgumentError(
            f'{name}: expected a whole number, got "{text[:40]}"; {_REMEDY}'
        )
    return int(text)


def free_port() -> int:
    """A port of PORTS on which no process listens now."""
    listener, port = listen_on_free_port()
    listener.close()
    return port


def listen_on_free_port() -> tuple[socket.socket, int]:
    """A listener on a port of PORTS. Raises TransportError if all are taken."""
    for port in random.sample(PORTS, len(PORTS)):
        listener = socket.socket()
        # Without SO_REUSEADDR a closing connection would block the port of the store.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            listener.bind(("", port))
            listener.listen(1024)
            return listener, port
        listener.close()
    raise _core.TransportError(
        f"expected a free TCP port from {PORTS.start} to {PORTS.stop - 1}, got none; end what "
        "listens there"
    )


def seconds(bound: float) -> timedelta:
    """A timedelta of at most 1e9 s."""
    return timedelta(seconds=min(bound, 1e9))


class PrefixStore(_core.Store):
    """A part of a store: its keys have a prefix."""

    def __init__(
        self, store: _core.Store, prefix: str, server: TcpStoreServer | None = None
    ) -> None:
        """server: of the store, if this process serves it."""
        super().__init__()
        self.store, self.prefix, self.server = store, prefix, server

    def set(self, key: str, value: bytes) -> None:
        self.store.set(self.prefix + key, value)

    def delete_key(self, key: str) -> None:
        self.store.delete_key(self.prefix + key)

    def get(self, key: str, timeout: timedelta) -> bytes:
        return bytes(self.store.get(self.prefix + key, timeout))

    def leave_will(self, key: str, value: bytes) -> None:
        self.store.leave_will(self.prefix + key, value)

    def withdraw_will(self, key: str) -> None:
        self.store.withdraw_will(self.prefix + key)

    def place(self) -> str:
        return self.store.place()


class TorchStore(_core.Store):
    """A store of torch's. Its calls have no bound where the server stands still, so threads make
    them."""

    def __init__(self, store: Any, timeout: float = 60.0) -> None:
        """timeout: seconds to write a value."""
        super().__init__()
        self.store, self.timeout = store, timeout
        self._late: BoundedCall[Any] | None = None  # holds the lock of torch's store

    def set(self, key: str, value: bytes) -> None:
        self._perform(lambda _: self.store.set(key, value), self.timeout)

    def get(self, key: str, timeout: timedelta) -> bytes:
        bound = _core.timeout(timeout.total_seconds())
        value: bytes | None = self._perform(lambda given_up: self._ask(key, given_up), bound)
        if value is None:
            raise _core.TimeoutError("no rank has set it")
        return value

    def place(self) -> str:
        inner = self.store
        while hasattr(inner, "underlying_store"):
            inner = inner.underlying_store
        at = f" at {inner.host}:{inner.port}" if hasattr(inner, "port") else ""
        return f"torch's store{at}"

    def _ask(self, key: str, given_up: threading.Event) -> bytes | None:
        begin = time.monotonic()
        # wait() would write warnings into the log while the key is not set.
        while not self.store.check([key]):
            if given_up.wait(min(max((time.monotonic() - begin) / 10, 0.001), 0.2)):
                return None
        return bytes(self.store.get(key))

    def _perform(self, function: Callable[[threading.Event], Any], seconds: float) -> Any:
        if self._late is not None and not self._late.over_within(ANSWER_SECONDS):
            raise StoreTimeoutError(self.place())
        call = BoundedCall(function)
        try:
            return call.result(seconds, self.place())
        except StoreTimeoutError:
            self._late = call
            raise
        except _core.Error:
            raise
        except Exception as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise _core.TransportError(
                f"the store failed: {why}; see that the process that serves it still runs"
            ) from error

    def delete_key(self, key: str) -> None:
        """Without effect where the store cannot, or does not answer."""
        with suppress(Exception):
            self._perform(lambda _: self.store.delete_key(key), 0.0)


# The servers of this process, by requested port. Other ranks may need them until the process ends.
_servers: dict[int, TcpStoreServer] = {}
_stores: dict[int, TcpStore] = {}  # connections of this process, by port
_groups = count()  # numbers groups that met by launcher variables; equal on all ranks
_groups_of_mpi = count()  # numbers groups of which this process was rank 0


def open_store(job: Job, environment: Mapping[str, str], timeout: float) -> _core.Store:
    """A store for all ranks of the job, separate for each call.

    Raises:
        TransportError: the store does not answer within `timeout` seconds, or its port is taken.
        InvalidArgumentError: only MPI knows the address, and mpi4py does not work.
    """
    if not job.address:
        return store_of_mpi(world_of_mpi(job), timeout)
    prefix = f"hetcomm/{f'{job.name}/' if job.name else ''}{next(_groups)}/"
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun serves one there
        from torch.distributed import PrefixStore as PartOfStore

        store = PartOfStore(prefix, _torch_store(job, timeout))
        part = _attempts.store_of_attempt(store, job.rank, job.size, timeout, "world")
        return TorchStore(part, timeout)
    address, server = job.address, None
    if job.rank == 0:
        server = _serve(job.port, job.name)
        address = "127.0.0.1"  # "localhost" is in no list of names on some machines
    client = _connect([address], job.port, timeout, f"rank {job.rank}", job.name)
    return PrefixStore(client, prefix, server)


def wait_for_readers() -> None:
    """Called after a failed set-up. Waits until other ranks have read the reason and left."""
    for server in _servers.values():
        server.wait_until_left(1, _READERS)


def wait_for_late_ranks(store: _core.Store, size: int, why: Exception, bound: float) -> None:
    """Called after a failed set-up. A process that serves the group's store waits up to `bound`
    seconds for ranks that start later, so that they read the reason."""
    server = getattr(store, "server", None)
    if server is None or bound <= 0 or server.processes() >= size:
        return
    logging.getLogger("hetcomm").warning(
        "hetcomm: %s; waiting up to %s for ranks that start later (%d of %d missing), so that they "
        "learn the reason", why, _core.format_seconds(bound), size - server.processes(), size
    )  # fmt: skip
    server.wait_until_came(size, bound)


def _serve(port: int, job: str = "") -> TcpStoreServer:
    if port not in _servers:
        _servers[port] = TcpStoreServer(port, job=job)
    return _servers[port]


def _connect(addresses: list[str], port: int, timeout: float, name: str, job: str = "") -> TcpStore:
    known = _stores.get(port)
    if known is None or known.addresses != addresses:
        known = _stores[port] = TcpStore(addresses, port, timeout, name=name, job=job)
    return known


def _torch_store(job: Job, timeout: float) -> Any:
    from torch.distributed import TCPStore

    def connect(_: threading.Event) -> Any:
        return TCPStore(
            job.address, job.port, job.size, False, seconds(timeout), wait_for_workers=False
        )

    place = f"torch's store at {job.address}:{job.port}"
    try:
        return BoundedCall(connect).result(timeout + ANSWER_SECONDS, place)
    except _core.TimeoutError:
        raise
    except (RuntimeError, ValueError) as error:
        raise _core.TransportError(
            f"found no store at {job.address}:{job.port} within "
            f"{_core.format_seconds(timeout)}; check MASTER_ADDR and MASTER_PORT, that torchrun's "
            f"agent runs, and that no firewall is in between ({str(error).splitlines()[0]})"
        ) from error


def world_of_mpi(job: Job) -> Any:
    """MPI's world communicator. It must match the launcher's rank and size."""
    remedy = "or give all ranks MASTER_ADDR and MASTER_PORT"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _core.InvalidArgumentError(
            "expected an address of rank 0; mpiexec gives none, and mpi4py does not load: "
            f"{str(error).splitlines()[0]}; install mpi4py and the MPI of that mpiexec, {remedy}"
        ) from error
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (job.rank, job.size):
        raise _core.InvalidArgumentError(
            f"expected mpi4py to find rank {job.rank} of {job.size}, as mpiexec says, got "
            f"{world.rank} of {world.size}; install mpi4py for the MPI of that mpiexec, {remedy}"
        )
    return world


def store_of_mpi(comm: Any, timeout: float) -> _core.Store:
    """A store for the processes of an mpi4py communicator. Its rank 0 serves the store."""
    if comm.Get_rank() > 0:
        received = comm.bcast(None)
        if isinstance(received, str):
            raise _core.TransportError(f"rank 0 serves no store: {received}")
        addresses, port, prefix = received
        name = f"rank {comm.Get_rank()}"
        return PrefixStore(_connect(addresses, port, timeout, name), prefix)
    try:
        server = _serve(0)
    except _core.Error as error:
        comm.bcast(str(error))
        raise
    nics = _core.probe_rank().nics
    addresses = [*dict.fromkeys(nic.address for nic in nics if nic.address), "127.0.0.1"]
    _, port, prefix = comm.bcast((addresses, server.port, f"mpi/{next(_groups_of_mpi)}/"))
    return PrefixStore(_connect(["127.0.0.1"], port, timeout, "rank 0"), prefix, server)
