"""bench/plan_sizes.py: a small case, beside a plain search of the same space."""

import plan_sizes
import pytest


def test_a_plain_search_is_no_faster_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_sizes, "BEAM_SECONDS", 1.0)
    case = plan_sizes.Case("2+2", {"A100": 2, "V100": 2}, "3B", 16)
    row = plan_sizes.measure(case, limit=20, alone=5, tolerance=0.02)
    assert not row["cut"] and row["gap"] <= 0.02 + 1e-9
    assert 1 - row["gap"] <= row["beam_over"] < 1.5
    assert row["never_fewer"] and row["share_of_sum"] > 0 and row["over_better"] > 0.99
    assert plan_sizes.line(row).count("|") == len(plan_sizes.COLUMNS) + 1
