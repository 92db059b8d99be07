"""The first cause reaches every rank, even if ranks end at once when they learn of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from job import BOUND, NOTICE, RANK, Job, errors_within, subfolder
from undisturbed import undisturbed

LAYOUTS = ["aaa", "aab", "abb", "aba", "abc", "aabb"]


def called(rank: int, count: int) -> re.Pattern[str]:
    """The part of the error about one caller. The line is that of the wait in rank.py."""
    return re.compile(
        rf"rank {rank} called all_reduce sum float32 x {count} \(history ....\) "
        rf"at {re.escape(str(RANK))}:\d+[,;]"
    )


def texts_of(errors: list[dict[str, str]]) -> list[str]:
    """A rank without processor time for 0.5 s tells no line, and for 2 s no call."""
    for error in errors:
        assert error["error"] == "InvalidArgumentError", error
        assert "ranks disagree" in error["text"], error
    return [error["text"] for error in errors]


@pytest.mark.parametrize("hosts", LAYOUTS)
@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_ranks_that_end_at_an_error_have_told_the_other_ranks(
    tmp_path: Path, hosts: str, odd: int, end: str
) -> None:
    def told() -> list[str]:
        with Job(subfolder(tmp_path), hosts) as job:
            job.do("all_reduce", 1000)
            for number, rank in enumerate(job.ranks):
                rank.tell("all_reduce_or_end", 1001 if number == odd else 1000, end)
            texts = texts_of(errors_within(job.ranks, NOTICE))
            for rank in job.ranks:
                assert rank.process.wait(BOUND) == {"exit": 3, "kill": -9}[end]
        return texts

    def names_two_callers(text: str) -> bool:
        others = [rank for rank in range(len(hosts)) if rank != odd]
        another = any(called(rank, 1000).search(text) for rank in others)
        return another and called(odd, 1001).search(text) is not None

    undisturbed(told, lambda texts: all(map(names_two_callers, texts)), times=3)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_both_callers_through_torch_are_named(tmp_path: Path, hosts: str) -> None:
    """The lines are outside torch."""

    def told() -> list[str]:
        with Job(subfolder(tmp_path), hosts, "torch") as job:
            job.do("all_reduce", 1000)
            for rank, count in zip(job.ranks, (1000, 1001), strict=True):
                rank.tell("all_reduce", count)
            return texts_of(errors_within(job.ranks, NOTICE))

    def names_both_callers(text: str) -> bool:
        return all(called(rank, 1000 + rank).search(text) for rank in range(2))

    undisturbed(told, lambda texts: all(map(names_both_callers, texts)), times=3)
