"""What a lossy codec may change of a result; docs/codecs.md has the bounds."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np

from hetcomm import _core
from hetcomm.bench.case import Case
from hetcomm.bench.values import Array

GROUP = 2048  # elements that may share a scale, at most
SMALLEST = 2.0**-84  # as which the largest magnitude of a group counts at least


@dataclass(frozen=True)
class Tolerance:
    """One encoding changes an element by at most the largest of three: a share of the element, a
    share of the largest magnitude of its group, and `least`."""

    element: float = 0.0
    group: float = 0.0
    least: float = 0.0

    def allowed(self, case: Case, sizes: Array, maxima: Array) -> Array:
        """The most that each element may be off, from its codec alone.

        An island's sum is encoded once, and the total once more. A gathered block is encoded once.
        sizes: of each element, the magnitudes of its inputs together. maxima: of each element, the
        group_maxima() of its inputs together. An island's sum has no larger one, because the
        largest elements of inputs may lie apart.
        """
        times = 2 if case.kind.reduces else 1
        # A lost element cannot be lost again.
        of_element = min(self.element * (times + self.element), 1.0)
        of_group = self.group * (times + self.group)
        least = self.least + self.group * SMALLEST
        allowed = of_element * sizes + times * least
        return allowed + of_group * maxima


_ROUNDED = 1 + 2.0**-16  # of the quotient, in integer codecs
_OF_CODECS = {
    "bf16": Tolerance(2.0**-8, least=2.0**-134),
    "fp16": Tolerance(2.0**-11, least=2.0**-25),
    "fp8_e4m3": Tolerance(2.0**-4, 1 / 450_000),
    "fp8_e5m2": Tolerance(2.0**-3, 1 / 7.4e9),
    "int8": Tolerance(group=_ROUNDED / 254),
    "int4": Tolerance(group=_ROUNDED / 14),
    "topk": Tolerance(1.0),  # may lose any element
}


def tolerance_of(codec: str) -> Tolerance | None:
    """codec: with or without parameter, "" for none; of levels the larger tolerance. None if every
    bit must come back."""
    if not codec or _core.is_lossless(codec):
        return None
    if "=" in codec:
        levels = [tolerance_of(entry.partition("=")[2]) for entry in codec.split(",")]
        fields = zip(*(astuple(each) for each in levels if each), strict=True)
        return Tolerance(*(max(field) for field in fields))
    name, *parameters = codec.split(":")
    found = _OF_CODECS[name]
    # A scale in bfloat16 is rounded up, by less than 2^-7.
    return replace(found, group=found.group * (1 + 2.0**-7)) if "bf16" in parameters else found


def group_maxima(sizes: Array, largest: float) -> Array:
    """At least the largest size in the group of each element, wherever groups begin.

    Each row of GROUP elements counts with both its neighbours. The first and the last row count as
    `largest`: their neighbours are unknown.
    """
    rows = -(-len(sizes) // GROUP)
    padded = np.zeros(rows * GROUP)
    padded[: len(sizes)] = sizes
    maxima = padded.reshape(rows, GROUP).max(axis=1)
    beside = np.concatenate([[largest], maxima, [largest]])
    around = np.maximum(np.maximum(beside[:-2], beside[2:]), maxima)
    return np.repeat(around, GROUP)[: len(sizes)]
