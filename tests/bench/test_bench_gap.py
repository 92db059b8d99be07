"""Calls after a pause or other work: the counted time, and rejected requests."""

from __future__ import annotations

import time
from typing import Any

import pytest
from benching import bench, measured

from hetcomm import InvalidArgumentError
from hetcomm.bench import Effort, Gap, Settings
from hetcomm.bench.gap import Spender, check_clocks, since_last_began
from hetcomm.bench.measure import schedule_of


class ControlOfTwo:
    """Rank 0 of two, whose peer's clock differs by so many seconds."""

    def __init__(self, apart: float) -> None:
        self.apart = apart

    def gather(self, mine: Any) -> list[Any]:
        theirs = None if mine is None else [moment + self.apart for moment in mine]
        return [mine, theirs]


def test_time_counts_from_the_start_of_the_last_rank() -> None:
    early = [(0.0, 5.0), (10.0, 11.0)]  # waits four seconds for the other rank in its first call
    late = [(4.0, 4.5), (10.5, 10.75)]
    assert since_last_began([early, late]) == [[1.0, 0.5], [0.5, 0.25]]


def test_a_rank_done_before_the_last_starts_takes_no_time() -> None:
    root, other = [(0.0, 1.0)], [(3.0, 5.0)]
    assert since_last_began([root, other]) == [[0.0], [2.0]]


def test_isolated_calls_are_samples_of_their_own() -> None:
    effort = Effort(seconds=1.0, gap=Gap(work=1e-3))
    found = schedule_of(1e-6, effort, whole=True)
    assert found.isolated and (found.calls, found.lead) == (1, 0)
    assert 900 <= found.samples * found.turns <= 1100  # the work counts too


def test_a_gap_lasts_as_long_as_requested() -> None:
    for gap in (Gap(pause=0.02), Gap(work=0.02)):
        start = time.perf_counter()
        Spender(gap).spend()
        assert time.perf_counter() - start >= 0.02


def test_impossible_gaps_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="one of --pause and --work, got both"):
        Gap(1e-3, 1e-3)
    with pytest.raises(InvalidArgumentError, match="expected 0 s or more, got -1 and 0"):
        Gap(pause=-1)


def test_ranks_need_one_clock() -> None:
    check_clocks(ControlOfTwo(0.0))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="expected ranks of one machine"):
        check_clocks(ControlOfTwo(3600.0))  # type: ignore[arg-type]


def test_every_rank_gets_the_gap() -> None:
    settings = Settings(("barrier",), ("hetcomm",), (8,), effort=Effort(gap=Gap(pause=0.5)))
    assert Settings.from_json(settings.to_json()) == settings


def test_the_command_measures_with_gaps() -> None:
    found = measured("all_reduce", "broadcast", "--ranks", 2, "--work", 0.0005, "--out-of-place")
    assert found["settings"]["effort"]["gap"] == {"pause": 0.0, "work": 0.0005}
    for row in found["rows"]:
        assert row["calls_per_sample"] == 1 and len(row["samples"]) == 6
        assert row["in_place"] == (row["collective"] == "broadcast") and row["median"] > 0


def test_the_table_names_the_gap() -> None:
    done = bench("--ranks", 2, "--sizes", "8", "--iterations", 3, "--pause", 0.001)
    assert done.returncode == 0, done.stderr
    assert "each call after a pause of 1 ms" in done.stdout
    both = bench("--ranks", 2, "--pause", 1, "--work", 1)
    assert both.returncode == 2 and "one of --pause and --work" in both.stderr
