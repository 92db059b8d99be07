"""Where the ranks of a job meet: what launchers tell, and the stores that result from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hetcomm import _core
from hetcomm.tcp_store import TcpStore, TcpStoreServer

# How launchers name rank and size, those first that may run inside others.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpiexec
    ("PMI_RANK", "PMI_SIZE"),  # MPICH's, Intel's
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun
)
# Under Slurm, the port follows from the job, so that two on one host do not meet.
_PORTS = range(20_000, 30_000)


@dataclass(frozen=True, slots=True)
class Job:
    """One process of a job. address, port: where the store is; "" if only MPI could tell."""

    rank: int
    size: int
    address: str = ""
    port: int = 0


def job_of(environment: Mapping[str, str]) -> Job | None:
    """What the launcher says; None if there is none. Raises InvalidArgumentError."""
    for names in _LAUNCHERS:
        if names[1] in environment:
            break
    else:
        return None
    rank, size = (_number(environment, name) for name in names)
    if not rank < size:
        raise _core.InvalidArgumentError(
            f"expected {names[0]} below {names[1]}, got {rank} and {size}"
        )
    if "MASTER_ADDR" in environment or "MASTER_PORT" in environment or names[0] == "RANK":
        port = _number(environment, "MASTER_PORT")
        if not 0 < port < 65536:
            raise _core.InvalidArgumentError(f"MASTER_PORT: expected 1 to 65535, got {port}")
        return Job(rank, size, _text(environment, "MASTER_ADDR"), port)
    if names[0] == "SLURM_PROCID":
        port = _PORTS[
            (_number(environment, "SLURM_JOB_ID") * 64 + _number(environment, "SLURM_STEP_ID"))
            % len(_PORTS)
        ]
        return Job(rank, size, first_host(_text(environment, "SLURM_STEP_NODELIST")), port)
    return Job(rank, size)


def first_host(nodes: str) -> str:
    """Of a list as Slurm writes it: "node[03-07,12],login" begins with node03."""
    found = re.match(r"([^,\[]*)(?:\[(\d+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


def _text(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise _core.InvalidArgumentError(
            f"expected {name}, which is not set; start with torchrun, srun or mpiexec, set RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none of these for one process alone"
        )
    return environment[name]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _text(environment, name)
    if not text.isdecimal():
        raise _core.InvalidArgumentError(f'{name}: expected a number, got "{text}"')
    return int(text)


def seconds(bound: float) -> timedelta:
    return timedelta(seconds=min(bound, 1e9))


class PrefixStore(_core.Store):
    """A part of a store, whose keys have a prefix there."""

    def __init__(self, store: _core.Store, prefix: str) -> None:
        super().__init__()
        self.store, self.prefix = store, prefix

    def set(self, key: str, value: bytes) -> None:
        self.store.set(self.prefix + key, value)

    def get(self, key: str, timeout: timedelta) -> bytes:
        return bytes(self.store.get(self.prefix + key, timeout))


class TorchStore(_core.Store):
    """A store of torch's."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def get(self, key: str, timeout: timedelta) -> bytes:
        try:
            self.store.wait([key], timeout)
        except RuntimeError as error:
            raise TimeoutError(str(error)) from error
        return bytes(self.store.get(key))


class ServedStore(PrefixStore):
    """A part of a store, on the rank that serves it."""

    def __init__(self, server: TcpStoreServer, store: _core.Store, prefix: str) -> None:
        super().__init__(store, prefix)
        self.server = server


def open_store(job: Job, environment: Mapping[str, str], timeout: float) -> _core.Store:
    """Where all ranks of the job meet, for this attempt of an elastic one.

    Raises:
        TransportError: it is not there within `timeout` seconds, or its port is taken.
        InvalidArgumentError: only MPI knows where, and there is no mpi4py.
    """
    if not job.address:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise _core.InvalidArgumentError(
                "mpiexec tells ranks nothing about where to meet: install mpi4py, or give all of "
                "them MASTER_ADDR and MASTER_PORT"
            ) from error
        return store_of_mpi(MPI.COMM_WORLD, timeout)
    prefix = f"hetcomm/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}/"
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun serves one there
        return PrefixStore(TorchStore(_torch_store(job, timeout)), prefix)
    if job.rank > 0:
        return PrefixStore(TcpStore(job.address, job.port, timeout), prefix)
    server = TcpStoreServer(job.port)
    return ServedStore(server, TcpStore("localhost", server.port, timeout), prefix)


def _torch_store(job: Job, timeout: float) -> Any:
    from torch.distributed import TCPStore

    try:
        return TCPStore(
            job.address, job.port, job.size, False, seconds(timeout), wait_for_workers=False
        )
    except (RuntimeError, ValueError) as error:
        raise _core.TransportError(
            f"found no store at {job.address}:{job.port} within {timeout:g} s; "
            "check MASTER_ADDR and MASTER_PORT, that torchrun's agent runs, and that no firewall "
            f"is in between ({str(error).splitlines()[0]})"
        ) from error


def store_of_mpi(comm: Any, timeout: float) -> _core.Store:
    """Where the processes of an mpi4py communicator meet: its first serves a store."""
    if comm.Get_rank() > 0:
        addresses, port = comm.bcast(None)
        return PrefixStore(TcpStore(addresses, port, timeout), "hetcomm/")
    server = TcpStoreServer()
    nics = _core.probe_rank().nics
    comm.bcast(
        ([*dict.fromkeys(nic.address for nic in nics if nic.address), "127.0.0.1"], server.port)
    )
    return ServedStore(server, TcpStore("127.0.0.1", server.port, timeout), "hetcomm/")
