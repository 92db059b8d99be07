"""Changed inputs. The seed, the target's name and the number of an input decide its bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

# Numbers at the limits of types, and what parsers of texts trip over.
NUMBERS = [0, 1, 2, 7, 8, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62]
NUMBERS += [2**63 - 1, 2**63, 2**64 - 1]
WORDS = [
    *(str(number).encode() for number in NUMBERS),
    b"-1", b"-9223372036854775808", b"1e308", b"1e-320", b"nan", b"inf", b"0x10", b"1.5", b"",
    b"\0", b"\n", b"\t", b" ", b'"', b"'", b"=", b":", b",", b"/", b"..", b"#", b"[", b"]", b"{",
    b"}", b"null", b"true", b"\xff", b"\xc3\xa4", b"\xe2\x80\xa8", b"%s", b"A" * 300,
]  # fmt: skip
MOST_BYTES = 1 << 16


def mutated(seed: int, target: str, number: int, samples: Sequence[bytes]) -> bytes:
    """The input `number` of a target: a sample with one to eight changes."""
    chance = random.Random(f"{seed}/{target}/{number}")
    data = bytearray(chance.choice(samples))
    for _ in range(1 << chance.randrange(4)):
        chance.choice(CHANGES)(chance, data, samples)
    return bytes(data[:MOST_BYTES])


def _place(chance: random.Random, data: bytearray) -> tuple[int, int]:
    """Begin and end of a range, mostly short."""
    begin = chance.randrange(len(data) + 1)
    return begin, min(len(data), begin + chance.choice((1, 2, 4, 8, 16, 64, len(data))))


def _flip(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _overwrite(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _number(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """A limit in place of a number of records, which are aligned less often than not."""
    width = chance.choice((1, 2, 4, 8, 8, 8))
    at = chance.randrange(len(data) + 1)
    value = chance.choice([*NUMBERS, len(data), max(len(data) - at, 0)])
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(
        width, chance.choice(("little", "little", "big"))
    )


def _cut(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    begin, end = _place(chance, data)
    del data[begin:end]


def _end(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _repeat(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    begin, end = _place(chance, data)
    data[begin:begin] = data[begin:end] * chance.choice((1, 1, 2, 8))


def _word(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    begin, end = _place(chance, data)
    data[begin : chance.choice((begin, end))] = chance.choice(WORDS)


def _line(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """Lines in another order, doubled or left out."""
    lines = data.split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[at : at + chance.randrange(2)] = [lines[other]] * chance.randrange(3)
    data[:] = b"\n".join(lines)


def _splice(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    other = chance.choice(samples)
    at = chance.randrange(len(other) + 1)
    data[chance.randrange(len(data) + 1) :] = other[at:]


CHANGES = (_flip, _overwrite, _number, _number, _cut, _end, _repeat, _word, _word, _line, _splice)
