"""Compares results with NumPy's, chunk by chunk, which needs little memory."""

from __future__ import annotations

from functools import reduce

import numpy as np

from hetcomm.bench.case import Case
from hetcomm.bench.values import CHUNK, ELEMENTS, OPS, Array, elements_of


def fill_input(case: Case, rank: int, seed: int, given: Array) -> None:
    """Fills the input with this rank's random elements."""
    for start in range(0, len(given), CHUNK):
        part = given[start : start + CHUNK]
        part[:] = elements_of(case.dtype, seed, rank, start, len(part))


def wrong_element(case: Case, rank: int, seed: int, got: Array) -> str:
    """Describes the first wrong element in the output of this rank; "" without one."""
    for block in range(case.blocks(rank)[1]):
        sources = case.sources(rank, block)
        for start in range(0, case.count if sources else 0, CHUNK):
            count = min(CHUNK, case.count - start)
            inputs = [
                elements_of(case.dtype, seed, source, offset + start, count)
                for source, offset in sources
            ]
            first = block * case.count + start
            found = _compare(case, inputs, got[first : first + count])
            if found is not None:
                index, expected, came = found
                return f"element {first + index} is {came}, expected {expected}"
    return ""


def _compare(case: Case, inputs: list[Array], got: Array) -> tuple[int, str, str] | None:
    """Index, expected and actual value of the first wrong element."""
    element = ELEMENTS[case.dtype]
    numbers = [element.numbers(each) for each in inputs]
    if len(inputs) == 1 or not element.floating or OPS[case.op].exact:
        expected = numbers[0]
        if len(inputs) > 1:
            expected = reduce(OPS[case.op].combine, numbers)
        allowed = np.zeros(1)
        bad = element.numbers(got) != expected
    else:
        expected = reduce(OPS[case.op].combine, numbers)
        # Each of the n - 1 steps may round the result, and so may the division of an average.
        allowed = len(inputs) * element.epsilon * np.abs(expected) + np.finfo(np.float32).tiny
        if case.op == "avg":
            expected, allowed = expected / case.ranks, allowed / case.ranks
        bad = ~(np.abs(element.numbers(got) - expected) <= allowed)
    if not bad.any():
        return None
    index = int(np.argmax(bad))
    tolerance = f" within {allowed[index]:.2g}" if len(allowed) > 1 or allowed[0] else ""
    return index, f"{expected[index]}{tolerance}", f"{element.numbers(got)[index]}"
