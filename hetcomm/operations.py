"""Names of reductions: hetcomm's words and mpi4py's operations."""

from __future__ import annotations

import sys
from typing import Any

from hetcomm import _core

OPERATIONS = {name.replace("average", "avg"): op for name, op in _core.ReduceOp.__members__.items()}
OF_MPI = {
    "SUM": "sum", "PROD": "product", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor",
    "BXOR": "bxor",
}  # fmt: skip
_LOGICAL = {"LAND": "band", "LOR": "bor", "LXOR": "bxor"}  # bitwise only for booleans


def name_of(op: Any, array: Any) -> str:
    """hetcomm's word for an operation on `array`, given as this word or as mpi4py's operation.

    Raises:
        InvalidArgumentError: the operation is unknown, or wrong for the array's dtype.
    """
    if isinstance(op, str) and op in OPERATIONS:
        return op
    mpi = sys.modules.get("mpi4py.MPI")  # its operations exist only after its import
    shown = f'"{op}"' if isinstance(op, str) else repr(op)
    if mpi is not None and isinstance(op, mpi.Op):
        shown = next(
            (
                name
                for name, value in vars(mpi).items()
                if isinstance(value, mpi.Op) and value == op
            ),
            "one of the program's own",
        )
        if shown in OF_MPI:
            return OF_MPI[shown]
        if shown in _LOGICAL:
            dtype = str(getattr(array, "dtype", "unknown")).rpartition(".")[2]
            if dtype == "bool":
                return _LOGICAL[shown]
            raise _core.InvalidArgumentError(
                f"op: expected an array of booleans for MPI.{shown}, got one of {dtype}; pass "
                f"array != 0, or use MPI.{shown.replace('L', 'B', 1)}"
            )
        shown = f"MPI's {shown}"
    words = ", ".join(f'"{name}"' for name in OPERATIONS)
    raise _core.InvalidArgumentError(
        f"op: expected one of {words}, or of mpi4py's {', '.join([*OF_MPI, *_LOGICAL])}; "
        f"got {shown}"
    )
