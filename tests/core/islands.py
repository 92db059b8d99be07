"""Random calls of the shared-memory island, the results by NumPy, and members that make the
calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from float_oracle import NARROW, decode, encode

from hetcomm import _core

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
# NumPy's type if NumPy computes with the dtype, else one of its size.
STORAGE = {
    name: np.dtype(dtype.numpy)
    if dtype.numpy[0] in "fiub" and dtype.numpy[1:].isdigit()
    else np.dtype(np.complex128 if dtype.size == 16 else f"u{dtype.size}")
    for name, dtype in _core.Dtype.__members__.items()
}
# The engine of host memory knows no factor: plans multiply first.
OPS = ("sum", "product", "min", "max", "band", "bor", "bxor", "average")
FACTOR = 0.5  # of every premul_sum: exact in every dtype
UNKNOWN_TO_NUMPY = NARROW.keys() - {"float16"}


def reducible() -> list[tuple[str, str]]:
    """All (dtype, op) that the core reduces."""
    return [
        (dtype, op)
        for dtype in STORAGE
        for op in OPS
        if _core.reducible(getattr(_core.Dtype, dtype), getattr(_core.ReduceOp, op))
    ]


def widen(dtype: str, stored: np.ndarray) -> np.ndarray:
    """The numbers of a dtype that NumPy lacks, in float32; other values unchanged."""
    if dtype not in UNKNOWN_TO_NUMPY:
        return stored
    return decode(dtype, stored.view(np.uint8)).astype(np.float32)


def narrow(dtype: str, values: np.ndarray) -> np.ndarray:
    """Rounded to the dtype, to nearest even."""
    if dtype not in UNKNOWN_TO_NUMPY:
        return values.astype(STORAGE[dtype])
    return encode(dtype, values.astype(np.float64)).view(STORAGE[dtype])


def random_values(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    storage = STORAGE[dtype]
    if dtype == "boolean":
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.startswith(("float", "bfloat")):
        return narrow(dtype, rng.standard_normal(count))
    return rng.integers(0, 256, count * np.dtype(storage).itemsize, np.uint8).view(storage)


def reduced(dtype: str, op: str, sources: Sequence[np.ndarray]) -> np.ndarray:
    """The sources combined in order; 16-bit and 8-bit floats in float32 and rounded once."""
    if dtype == "boolean":
        logic = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}
        op = logic.get(op, op)
    function = {
        "sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
        "average": np.add, "premul_sum": np.add,
    }[op]  # fmt: skip
    if op == "premul_sum":
        sources = [narrow(dtype, widen(dtype, source) * FACTOR) for source in sources]
    sources = [widen(dtype, source) for source in sources]
    if dtype == "float16":
        sources = [source.astype(np.float32) for source in sources]
    total = sources[0]
    with np.errstate(over="ignore"):
        for source in sources[1:]:
            following = function(total, source)
            kept = op in ("min", "max")  # of equal values, 0.0 and -0.0, the first
            total = np.where(total == source, total, following) if kept else following
        if op == "average":
            total = total / total.dtype.type(len(sources))
        return narrow(dtype, total)


@dataclass
class Piece:
    source: int | None = None  # the member of the source; None: all
    target: int | None = None  # the member of the target; None: all
    count: int = 0


@dataclass
class Case:
    """One call with the memory of every member and the targets that NumPy expects."""

    kind: str
    dtype: str
    op: str
    members: int
    pieces: list[Piece]
    sources: list[list[np.ndarray]] = field(default_factory=list)  # member x piece
    targets: list[list[np.ndarray]] = field(default_factory=list)
    expected: list[np.ndarray] = field(default_factory=list)  # by piece

    def call(self, member: int, sequence: int = 0) -> _core.IslandCall:
        rows = []
        for index, piece in enumerate(self.pieces):
            reads = piece.source in (None, member)
            writes = piece.target in (None, member)
            rows.append((
                -1 if piece.source is None else piece.source,
                -1 if piece.target is None else piece.target,
                self.sources[member][index].ctypes.data if reads else 0,
                self.targets[member][index].ctypes.data if writes else 0,
                piece.count,
            ))  # fmt: skip
        return _core.IslandCall(
            getattr(_core.StepKind, f"island_{self.kind}"),
            getattr(_core.Dtype, self.dtype),
            getattr(_core.ReduceOp, self.op),
            sequence,
            rows,
            factor=FACTOR if self.op == "premul_sum" else 1,
        )

    def check(self, *members: int) -> None:
        """Compares the targets of these members, or of all if none is given."""
        for member in members or range(self.members):
            for index, piece in enumerate(self.pieces):
                if piece.target in (None, member):
                    got = self.targets[member][index]
                    assert got.tobytes() == self.expected[index].tobytes(), (
                        f"{self.kind} {self.op} {self.dtype}, {self.members} members, "
                        f"piece {index} of {[p.count for p in self.pieces]} on member {member}"
                    )


def ordinary(count: int) -> np.ndarray:
    return np.empty(count, np.uint8)


def memory(
    values: np.ndarray, unaligned: bool, bytes_of: Callable[[int], np.ndarray] = ordinary
) -> np.ndarray:
    """A copy of the values, one byte off any alignment if `unaligned`."""
    shift = int(unaligned)
    raw = bytes_of(values.nbytes + shift + 1)
    copy = raw[shift : shift + values.nbytes].view(values.dtype)
    copy[:] = values
    return copy


def random_case(
    rng: np.random.Generator,
    kind: str,
    dtype: str,
    op: str,
    members: int,
    largest: int,
    bytes_of: Callable[[int], np.ndarray] = ordinary,
) -> Case:
    """Pieces of odd sizes up to `largest` elements, some empty, some in place, some unaligned."""
    anyone = range(members)
    has_source = kind in ("all_gather", "all_to_all")
    has_target = kind in ("reduce_scatter", "all_to_all")
    pieces = []
    for _ in range(rng.integers(0, 2 * members + 1)):
        piece = Piece(count=int(rng.integers(0, largest + 1)) if rng.random() < 0.9 else 0)
        piece.source = int(rng.choice(anyone)) if has_source else None
        piece.target = int(rng.choice(anyone)) if has_target else None
        pieces.append(piece)
    case = Case(kind, dtype, op, members, pieces)
    unaligned = rng.random() < 0.3
    in_place = rng.random() < 0.5
    case.sources = [
        [memory(random_values(rng, dtype, piece.count), unaligned, bytes_of) for piece in pieces]
        for _ in anyone
    ]
    for index, piece in enumerate(pieces):
        if has_source:
            assert piece.source is not None
            case.expected.append(case.sources[piece.source][index].copy())
        else:
            case.expected.append(reduced(dtype, op, [row[index] for row in case.sources]))
    case.targets = [
        [
            source if in_place and (piece.source in (None, member)) else memory(
                random_values(rng, dtype, piece.count), unaligned, bytes_of
            )
            for piece, source in zip(pieces, case.sources[member], strict=True)
        ]
        for member in anyone
    ]  # fmt: skip
    return case


def one_piece(kind: str, dtype: str, count: int, members: int = 2, op: str = "sum") -> Case:
    rng = np.random.default_rng(0)
    case = Case(kind, dtype, op, members, [Piece(count=count)])
    case.sources = [[np.zeros(count, STORAGE[dtype])] for _ in range(members)]
    case.targets = [[rng.integers(0, 99, count).astype(STORAGE[dtype])] for _ in range(members)]
    return case


def run_threads(members: int, body: Callable[[int], None]) -> None:
    """Runs body(member) on a thread for each member. Raises the first failure."""
    failures: list[BaseException] = []

    def run(member: int) -> None:
        try:
            body(member)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(member,)) for member in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def open_islands(
    members: int, lanes: int = 4, slot_bytes: int = 0, events: Sequence[int] = ()
) -> list[_core.ShmIsland]:
    """One island for each member of this process."""
    name = _core.create_shm_segment(members, lanes, slot_bytes)
    islands: list[_core.ShmIsland] = [None] * members

    def attach(member: int) -> None:
        islands[member] = _core.ShmIsland(
            name, member, members, lanes=lanes, ranks=[10 + m for m in range(members)],
            events=list(events), timeout=100.0,
        )  # fmt: skip

    run_threads(members, attach)
    return islands


def shared(count: int) -> np.ndarray:
    return np.frombuffer(_core.SharedMemory(count), np.uint8)


def fork(body: Callable[[], None]) -> int:
    """Forks a child that runs body(). The child exits with 0 if body() returns."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return child


def run_cases(islands: list[_core.ShmIsland], cases: list[Case], lane: int = 0) -> None:
    """Runs all cases in sequence in one lane, then checks the targets."""

    def member_body(member: int) -> None:
        for sequence, case in enumerate(cases):
            islands[member].start(lane, case.call(member, sequence))
            islands[member].wait([lane], 100)

    run_threads(len(islands), member_body)
    for case in cases:
        case.check()
