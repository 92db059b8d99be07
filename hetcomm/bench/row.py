"""One line of a result: a backend, a case, and its measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hetcomm.bench.case import Case
from hetcomm.bench.legs import Legs


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least this share of all samples does not exceed (nearest rank).
    With fewer than 100 samples the 0.99 quantile is the largest."""
    return sorted(samples)[max(math.ceil(share * len(samples)) - 1, 0)]


@dataclass(frozen=True)
class Row:
    """Times in seconds, of one call. samples: each the mean of `calls` consecutive calls, on the
    slowest rank. ranks: the median of each rank's own samples.

    checked: whether results were compared. predicted: see Backend. legs: None unless measured.
    codec: see Backend. error: of the results, the norm of what is wrong over the norm of the exact
    results. None if nothing was compared, or no floats.
    """

    backend: str
    library: str
    case: Case
    calls: int
    samples: list[float]
    ranks: list[float]
    checked: bool
    predicted: dict[str, float] | None = None
    legs: Legs | None = None
    codec: str = ""
    error: float | None = None

    @property
    def minimum(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def p99(self) -> float:
        return quantile(self.samples, 0.99)

    @property
    def algbw(self) -> float:
        """Bytes per second: the largest buffer divided by the median time."""
        return self.case.bytes / self.median

    @property
    def busbw(self) -> float:
        return self.algbw * self.case.kind.bus(self.case.ranks)

    @property
    def fewer_bytes(self) -> float | None:
        """Predicted bytes between hosts without the codec, over those with it. None without codec
        or second host."""
        sent = self.predicted["bridge_bytes"] if self.predicted else 0
        if not self.predicted or not sent or "plain_bridge_bytes" not in self.predicted:
            return None
        return self.predicted["plain_bridge_bytes"] / sent

    def as_json(self) -> dict[str, Any]:
        """All fields and derived figures."""
        return {
            "backend": self.backend,
            "library": self.library,
            **asdict(self.case),
            "bytes": self.case.bytes,
            "min": self.minimum,
            "median": self.median,
            "p99": self.p99,
            "algbw": self.algbw,
            "busbw": self.busbw,
            "checked": self.checked,
            "codec": self.codec,
            "fewer_bytes": self.fewer_bytes,
            "error": self.error,
            "predicted": self.predicted,
            "calls_per_sample": self.calls,
            "samples": self.samples,
            "median_by_rank": self.ranks,
            "legs": asdict(self.legs) if self.legs is not None else None,
        }


def row_of(line: dict[str, Any]) -> Row:
    """The inverse of as_json()."""
    case = Case(**{name: line[name] for name in Case.__dataclass_fields__})
    return Row(
        line["backend"],
        line["library"],
        case,
        line["calls_per_sample"],
        line["samples"],
        line["median_by_rank"],
        line["checked"],
        line["predicted"],
        Legs(**line["legs"]) if line["legs"] is not None else None,
        line["codec"],
        line["error"],
    )
