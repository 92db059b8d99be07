"""A measured case: a collective or messages, with count and dtype of the elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hetcomm import _core
from hetcomm.bench.values import ELEMENTS, OPS


@dataclass(frozen=True)
class Kind:
    """How a collective uses the blocks of its buffers, each of `Case.count` elements.

    many_inputs, many_outputs: the buffer has a block for each rank. rooted_input, rooted_output:
    only the root has the buffer. bus: bus bandwidth divided by algorithm bandwidth, for n ranks.
    """

    summary: str
    bus: Callable[[int], float]
    many_inputs: bool = False
    many_outputs: bool = False
    rooted_input: bool = False
    rooted_output: bool = False
    reduces: bool = False
    rooted: bool = False
    # Whether results may overwrite the input; the first value is the default.
    places: tuple[bool, ...] = (False,)

    @property
    def many(self) -> bool:
        """Whether the largest buffer has a block for each rank."""
        return self.many_inputs or self.many_outputs


def _all(n: int) -> float:
    return 1.0


def _share(n: int) -> float:
    return (n - 1) / n


KINDS = {
    "all_reduce": Kind(
        "reduction on every rank", lambda n: 2 * (n - 1) / n, reduces=True, places=(True, False)
    ),
    "reduce": Kind(
        "reduction on the root", _all, rooted_output=True, reduces=True, rooted=True,
        places=(False, True),
    ),
    "reduce_scatter": Kind(
        "a block of the reduction on each rank", _share, many_inputs=True, reduces=True
    ),
    "broadcast": Kind("the root's buffer on every rank", _all, rooted=True, places=(True,)),
    "all_gather": Kind(
        "every rank's block on every rank", _share, many_outputs=True, places=(False, True)
    ),
    "gather": Kind(
        "every rank's block on the root", _share, many_outputs=True, rooted_output=True, rooted=True
    ),
    "scatter": Kind(
        "a block of the root's on each rank", _share, many_inputs=True, rooted_input=True,
        rooted=True,
    ),
    "all_to_all": Kind(
        "a block of every rank for every rank", _share, many_inputs=True, many_outputs=True
    ),
    "barrier": Kind("nothing but waiting for all", _all),
    "send_recv": Kind("each rank sends to the next, all at once", _all),
    "ping_pong": Kind("first and last rank send to each other in turn; half a round trip", _all),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A call to measure: a collective or message, with its dtype and size.

    count: elements of a block. in_place: the result is written over the input.
    """

    collective: str
    dtype: str
    op: str  # "" where nothing is reduced
    root: int
    count: int
    ranks: int
    in_place: bool

    @property
    def kind(self) -> Kind:
        return KINDS[self.collective]

    @property
    def bytes(self) -> int:
        """Bytes of the collective's largest buffer."""
        return self.count * (self.ranks if self.kind.many else 1) * ELEMENTS[self.dtype].size

    def blocks(self, rank: int) -> tuple[int, int]:
        """Blocks of the input and of the output of a rank."""
        kind, here = self.kind, rank == self.root
        if not self.count:
            return 0, 0
        given = 0 if kind.rooted_input and not here else self.ranks if kind.many_inputs else 1
        got = 0 if kind.rooted_output and not here else self.ranks if kind.many_outputs else 1
        return given, got

    def sources(self, rank: int, block: int) -> list[tuple[int, int]]:
        """(rank, offset in its input) of the blocks combined in a block of this rank's output.
        Empty if the contents do not matter."""
        n, count, name = self.ranks, self.count, self.collective
        if self.kind.reduces:
            offset = rank * count if self.kind.many_inputs else 0
            return [(each, offset) for each in range(n)]
        if name == "send_recv":
            return [((rank - 1) % n, 0)]
        if name == "ping_pong":
            return [(n - 1 - rank, 0)] if rank in (0, n - 1) else []
        if self.kind.many_outputs:
            return [(block, rank * count if self.kind.many_inputs else 0)]
        return [(self.root, rank * count if self.kind.many_inputs else 0)]

    def describe(self) -> str:
        """ "all_reduce sum float32, 64 kB, in place"."""
        what = " ".join(filter(None, (self.collective, self.op, self.dtype)))
        place = ", in place" if self.in_place and self.kind.places != (True,) else ""
        return f"{what}, {_core.format_bytes(self.bytes)}{place}"


def case_of(
    collective: str,
    size: int,
    ranks: int,
    *,
    dtype: str = "float32",
    op: str = "sum",
    root: int = 0,
    in_place: bool | None = None,
) -> Case:
    """size: bytes of the largest buffer, rounded up to whole elements and blocks. in_place: None
    for the default, which is in place for all_reduce and broadcast alone.

    Raises InvalidArgumentError for an impossible case.
    """
    kind = KINDS.get(collective)
    if kind is None:
        raise unknown("collective", KINDS, collective)
    if dtype not in ELEMENTS:
        raise unknown("--dtype", ELEMENTS, dtype)
    if op not in OPS:
        raise unknown("--op", OPS, op)
    place = kind.places[0] if in_place is None or kind.places == (True,) else in_place
    if place not in kind.places:
        raise _core.InvalidArgumentError(
            f"--in-place: {collective} has no such form; leave it out for this collective"
        )
    if kind.rooted and not 0 <= root < ranks:
        raise _core.InvalidArgumentError(f"--root: expected 0 to {ranks - 1}, got {root}")
    if collective != "barrier" and size < 1:
        raise _core.InvalidArgumentError(f"--sizes: expected at least 1 byte, got {size}")
    if kind.reduces:
        OPS[op].check(dtype)
    unit = ELEMENTS[dtype].size * (ranks if kind.many else 1)
    return Case(
        collective,
        dtype,
        op if kind.reduces else "",
        root if kind.rooted else 0,
        0 if collective == "barrier" else -(-size // unit),
        ranks,
        place,
    )


def unknown(what: str, known: Iterable[str], given: str) -> Exception:
    """The error for a name outside of `known`."""
    names = ", ".join(known)
    error: Exception = _core.InvalidArgumentError(f'{what}: expected one of {names}; got "{given}"')
    return error
