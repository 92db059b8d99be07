"""Compares results with NumPy's, chunk by chunk, which needs little memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from hetcomm.bench.case import Case
from hetcomm.bench.inputs import Inputs
from hetcomm.bench.tolerance import Tolerance, group_maxima
from hetcomm.bench.values import CHUNK, ELEMENTS, OPS, Array


def fill_input(case: Case, rank: int, inputs: Inputs, given: Array) -> None:
    """Fills the input with this rank's elements."""
    for start in range(0, len(given), CHUNK):
        part = given[start : start + CHUNK]
        part[:] = inputs.elements(case.dtype, rank, start, len(part))


@dataclass
class Outcome:
    """What the check of a rank's output found.

    wrong: describes the first wrong element; "" without one. difference, norm: sums of squares over
    the floats of a rank, of output minus exact result, and of the exact result.
    """

    wrong: str = ""
    difference: float = 0.0
    norm: float = 0.0


def compare(
    case: Case, rank: int, inputs: Inputs, got: Array, tolerance: Tolerance | None = None
) -> Outcome:
    """Compares the output of this rank. tolerance: of a lossy codec."""
    outcome = Outcome()
    for block in range(case.blocks(rank)[1]):
        sources = case.sources(rank, block)
        for start in range(0, case.count if sources else 0, CHUNK):
            count = min(CHUNK, case.count - start)
            parts = [
                inputs.elements(case.dtype, source, offset + start, count)
                for source, offset in sources
            ]
            first = block * case.count + start
            largest = [inputs.largest(source) for source, _ in sources]
            found = _compare(case, parts, got[first : first + count], tolerance, largest, outcome)
            if found is not None and not outcome.wrong:
                index, expected, came = found
                outcome.wrong = f"element {first + index} is {came}, expected {expected}"
    return outcome


def _compare(
    case: Case,
    parts: list[Array],
    got: Array,
    tolerance: Tolerance | None,
    largest: list[float],
    outcome: Outcome,
) -> tuple[int, str, str] | None:
    """Index, expected and actual value of the first wrong element. Adds to `outcome`'s sums.

    largest: of the magnitudes of each input.
    """
    element = ELEMENTS[case.dtype]
    numbers, came = [element.numbers(part) for part in parts], element.numbers(got)
    expected = reduce(OPS[case.op].combine, numbers) if len(numbers) > 1 else numbers[0]
    allowed = np.zeros(1)
    if element.floating and (tolerance or (len(numbers) > 1 and not OPS[case.op].exact)):
        sizes = np.abs(expected)
        if case.op in ("sum", "avg"):  # large inputs may have a small sum
            sizes = reduce(np.add, map(np.abs, numbers))
        roundings = len(numbers)
        if tolerance:
            rounded = 1 + element.epsilon  # an input may be rounded up
            maxima = [
                group_maxima(np.abs(each), bound * rounded)
                for each, bound in zip(numbers, largest, strict=True)
            ]
            allowed = tolerance.allowed(case, sizes, reduce(np.add, maxima))
            roundings += 1  # of what is decoded
        # Each of the n - 1 steps may round the result, and so may the division of an average.
        allowed = allowed + roundings * element.epsilon * sizes
        if case.op == "avg":
            expected, allowed = expected / case.ranks, allowed / case.ranks
        allowed += element.least
        bad = ~(np.abs(came - expected) <= allowed)
    else:
        bad = came != expected
    if element.floating:
        with np.errstate(over="ignore", invalid="ignore"):  # a wrong result may be infinite
            outcome.difference += float(np.square(came - expected).sum())
        outcome.norm += float(np.square(expected).sum())
    if not bad.any():
        return None
    index = int(np.argmax(bad))
    within = f" within {allowed[index]:.2g}" if len(allowed) > 1 or allowed[0] else ""
    return index, f"{expected[index]}{within}", f"{came[index]}"
