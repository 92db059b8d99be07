"""Two NICs of different rates on each host, beside the slower NIC alone."""

from __future__ import annotations

from studies.model import Layout, M, Outcome, Plan, Special, Verdict, median_of

ONE, BOTH, SIZE = Layout("2+2", ("1gbit",)), Layout("2+2", ("1gbit+2gbit",)), 16 * M
FASTER = 2.7


def study(plan: Plan, outcomes: list[Outcome]) -> Special:
    alone = median_of(outcomes, ONE, SIZE, "hetcomm")
    both = median_of(outcomes, BOTH, SIZE, "hetcomm")
    if alone is None or both is None:
        return {}, []
    ratio = alone / both
    return {}, [
        Verdict(
            "slower NIC", BOTH.describe(), "all_reduce 16 MiB", both, "the 1 Gbit/s NIC alone",
            alone, ratio, f">= {FASTER}", ratio >= FASTER,
        )
    ]  # fmt: skip
