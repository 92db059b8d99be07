"""All survivors report the same set of failed ranks."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from job import NOTICE, Job, assert_first_cause_stays, errors_within


def killed_together(job: Job, victims: list[int], pause: float = 0.0) -> None:
    for victim in victims:
        job[victim].process.send_signal(signal.SIGKILL)
        time.sleep(pause)


def report_together(
    folder: Path, hosts: str, victims: list[int], pause: float, calls: bool
) -> None:
    with Job(folder, hosts) as job:
        if calls:
            assert set(job.do("turn", 1000)) == {"turning"}
        else:
            job.do("all_reduce", 1000)
        killed_together(job, victims, pause)
        survivors = [rank for number, rank in enumerate(job.ranks) if number not in victims]
        if not calls:
            for rank in survivors:
                rank.tell("all_reduce", 1000)
        errors = errors_within(survivors, NOTICE)
        named = "ranks " + ", ".join(map(str, sorted(victims))) + " are gone"
        for error in errors:
            assert error["error"] == "PeerFailedError" and named in error["text"], errors
            assert (error["failed"], error["peer"]) == (sorted(victims), min(victims)), errors
        assert_first_cause_stays(survivors, errors)
        for rank in survivors:
            rank.exits_cleanly()


@pytest.mark.parametrize("calls", [True, False], ids=["amid-calls", "idle"])
@pytest.mark.parametrize(
    ("hosts", "victims", "pause"),
    [
        ("aaaaaa", [2, 5], 0.0),
        ("aaaaaa", [0, 1, 3], 0.0),
        ("aabbcc", [0, 5], 0.0),
        ("abcabc", [4, 1], 0.1),
        ("aabb", [0, 1], 0.2),
        ("aaaaa", [3, 0], 0.05),
        ("aaaaaa", [0, 2, 3, 5, 4], 0.0),  # rank 1 has no connection to rank 4
    ],
)
def test_ranks_killed_together_are_reported_together(
    tmp_path: Path, hosts: str, victims: list[int], pause: float, calls: bool
) -> None:
    report_together(tmp_path, hosts, victims, pause, calls)


def test_survivors_of_one_host_stay_joined(tmp_path: Path) -> None:
    """Ranks 2 and 5 have no connection by number, but share a host."""
    for calls in (True, False):
        folder = tmp_path / str(calls)
        folder.mkdir()
        report_together(folder, "aabaab", [0, 1, 3, 4], 0.0, calls)


def test_a_stopped_rank_delays_the_others_by_little(tmp_path: Path) -> None:
    """The lowest survivor decides which ranks have failed, unless it stands still."""
    with Job(tmp_path, "aabb") as job:
        job.do("all_reduce", 1000)
        job[0].signal(signal.SIGSTOP)
        job[2].signal(signal.SIGKILL)
        survivors = [job[1], job[3]]
        for rank in survivors:
            rank.tell("all_reduce", 1000)
        for error in errors_within(survivors, NOTICE):
            assert error["error"] == "PeerFailedError" and error["failed"] == [2], error
        job[0].signal(signal.SIGCONT)
        job[0].tell("all_reduce", 1000)
        assert job[0].error(NOTICE)["failed"] == [2]
        for rank in (job[0], *survivors):
            rank.exits_cleanly()
