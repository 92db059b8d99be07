"""What to measure: the command line's options, as every rank gets them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from hetcomm import _core
from hetcomm.bench.case import Case, case_of
from hetcomm.bench.gap import Gap
from hetcomm.bench.measure import Effort

FACTOR = 2


@dataclass(frozen=True)
class Settings:
    """What a run of `hetcomm bench` or `hetcomm tune` measures, and how.

    sizes: bytes. places: in place or not; None for the default. device: of torch's backends.
    timeout: seconds that a rank waits for other ranks. data: a file of elements; "" for random
    ones. program: the module of started ranks.
    """

    collectives: tuple[str, ...]
    backends: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    places: tuple[bool | None, ...] = (None,)
    root: int = 0
    effort: Effort = field(default_factory=Effort)
    device: str = ""
    timeout: float = 60.0
    seed: int = 0
    data: str = ""
    program: str = "hetcomm.bench.rank"

    def cases(self, ranks: int) -> list[Case]:
        """All cases in the order of measurement, without repetition.

        Raises InvalidArgumentError for an impossible case.
        """
        if ranks < 2:
            raise _core.InvalidArgumentError(
                f"expected at least 2 ranks, got {ranks}; start more ranks"
            )
        found = (
            case_of(collective, size, ranks, dtype=dtype, op=op, root=self.root, in_place=in_place)
            for collective in self.collectives
            for dtype in self.dtypes
            for op in self.ops
            for in_place in self.places
            for size in self.sizes
        )
        return list(dict.fromkeys(found))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        fields = json.loads(text)
        fields = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        effort = fields["effort"] | {"gap": Gap(**fields["effort"]["gap"])}
        return cls(**(fields | {"effort": Effort(**effort)}))


def parse_sizes(text: str) -> tuple[int, ...]:
    """ "8:64M" -> 8, 16, ... 64M; "8:64M:4" -> by a factor of 4; "8,4k,1M" -> these."""
    if ":" not in text:
        return tuple(_bytes(part) for part in text.split(","))
    first, last, *factor = text.split(":")
    smallest, largest = _bytes(first), _bytes(last)
    step = int(factor[0]) if len(factor) == 1 and factor[0].isdecimal() else FACTOR
    if len(factor) > 1 or (factor and not factor[0].isdecimal()) or step < 2 or largest < smallest:
        raise _core.InvalidArgumentError(
            '--sizes: expected "8:64M", from the smallest to the largest by a factor of 2, '
            f'"8:64M:4" by another, or a list "8,4k,1M"; got "{text}"'
        )
    sizes = [smallest]
    while sizes[-1] * step <= largest:
        sizes.append(sizes[-1] * step)
    return tuple(sizes)


def _bytes(text: str) -> int:
    try:
        size = int(_core.parse_bytes(text))
    except _core.Error as error:
        raise _core.InvalidArgumentError(f"--sizes: {error}") from None
    if size < 1:
        raise _core.InvalidArgumentError(
            f'--sizes: expected at least 1 byte, got "{text}"; leave it out, or measure barrier'
        )
    return size


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Without repetition, in the given order."""
    return tuple(dict.fromkeys(names))
