"""A frozen or dead peer delays no end: neither leave, abort, exit nor a failed set-up hangs."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from job import BOUND, NOTICE, Job, Process, errors_within, kind_of, wait_for

KINDS = ["core", "array", "torch"]
END = 30.0  # seconds; leave() takes at most 5, and some of its parts follow one another


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return kind_of(request)


def ends_in_time(ranks: list[Process]) -> None:
    begin = time.monotonic()
    for rank in ranks:
        rank.tell("exit")
    for rank in ranks:
        assert rank.value(END) == "exiting"
        rank.ended_cleanly()
    assert time.monotonic() - begin < END


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("count", [0, 16, 4_000_000], ids=["idle", "small", "large"])
def test_an_exit_waits_for_no_frozen_peer(
    tmp_path: Path, hosts: str, count: int, kind: str
) -> None:
    """Idle, and amid a collective that never completes."""
    with Job(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 1000)
        job[1].signal(signal.SIGSTOP)
        if count:
            job[0].do("submit", count)
        ends_in_time([job[0]])


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_thread_inside_a_collective_disturbs_no_exit(
    tmp_path: Path, hosts: str, kind: str
) -> None:
    """Calls of a daemon thread return before, while and after the interpreter ends."""
    with Job(tmp_path, hosts, kind) as job:
        job.do("turn_until_the_end", 1000)
        ends_in_time(job.ranks)


@pytest.mark.parametrize("hosts", ["aab", "abc"])
def test_a_rank_that_leaves_amid_an_operation_is_named(
    tmp_path: Path, hosts: str, kind: str
) -> None:
    with Job(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 1000)
        job[1].do("submit", 1000)
        job[1].do("leave")
        job[1].tell("wait", BOUND)
        for rank in job.others(1):
            rank.tell("all_reduce", 1000)
        for error in errors_within(job.ranks, NOTICE):
            assert error["error"] == "AbortedError" and error["peer"] == 1, error
            assert "the group was destroyed on rank 1 while operations were" in error["text"], error
            assert "peer rank 1" in error["text"], error
        ends_in_time(job.ranks)


@pytest.mark.parametrize("hosts", ["aab", "abc"])
def test_an_abort_waits_for_no_frozen_peer(tmp_path: Path, hosts: str, kind: str) -> None:
    with Job(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 1000)
        job[2].signal(signal.SIGSTOP)
        for rank in job.ranks[:2]:
            rank.do("submit", 1_000_000)
        job[1].tell("wait", BOUND)
        begin = time.monotonic()
        job[0].do("abort")
        assert time.monotonic() - begin < NOTICE
        (error,) = errors_within([job[1]], NOTICE)
        assert error["error"] == "AbortedError" and error["peer"] == 0, error
        ends_in_time(job.ranks[:2])


def test_an_abort_is_told_before_the_process_ends(tmp_path: Path, kind: str) -> None:
    """Also without an operation under way."""
    with Job(tmp_path, "aab", kind) as job:
        job.do("all_reduce", 1000)
        waiting = job.ranks[:2]
        for rank in waiting:
            rank.tell("all_reduce", 1000)
        job[2].tell("abort_and_end")
        for error in errors_within(waiting, NOTICE):
            assert error["error"] == "AbortedError" and error["peer"] == 2, error
        ends_in_time(waiting)


@pytest.mark.parametrize("stage", ["member-1", "named-1", "ready-1"])
@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_set_up_ends_without_a_rank(tmp_path: Path, stage: str, end: signal.Signals) -> None:
    """Rank 1 is frozen or killed once it has published its record of this stage."""
    (tmp_path / "first").mkdir()
    with Job(tmp_path, "aab", timeout=6.0, joins=False) as job:
        wait_for(lambda: (tmp_path / "first" / stage).exists())
        job[1].signal(end)
        for rank in job.others(1):
            answer = rank.answer(6.0 + END)
            if "error" in answer:
                assert answer["error"] in ("TimeoutError", "PeerFailedError"), answer
                # Rank 2 may name rank 0, which still waits for rank 1.
                named = r"rank 1\b" if rank is job[0] else r"rank [01]\b"
                assert re.search(named, answer["text"]), answer
            else:  # this rank was faster
                rank.tell("all_reduce", 1000)
                error = rank.error(6.0 + END)
                assert error["error"] in ("TimeoutError", "PeerFailedError"), error
        ends_in_time(job.others(1))
