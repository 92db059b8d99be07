"""What the ranks put in: random elements, or those of a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetcomm.bench.values import LARGEST, Array, cast, elements_of


@dataclass(frozen=True)
class Inputs:
    """The elements of all ranks' inputs.

    seed: of random elements. data: numbers (count,), repeated, instead of random ones.
    """

    seed: int = 0
    data: Array = None

    def elements(self, dtype: str, rank: int, start: int, count: int) -> Array:
        """Elements [start, start + count) of a rank's input."""
        if self.data is None:
            return elements_of(dtype, self.seed, rank, start, count)
        numbers = np.take(self.data, np.arange(start, start + count), mode="wrap")
        return cast(dtype, numbers * scale_of(rank))

    def largest(self, rank: int) -> float:
        """No element of the rank has a larger magnitude, apart from rounding to the dtype."""
        if self.data is None:
            return LARGEST
        return float(np.abs(self.data).max()) * scale_of(rank)


def scale_of(rank: int) -> float:
    """Ranks have different numbers, as the gradients of different batches are."""
    return 1 + 0.01 * rank
