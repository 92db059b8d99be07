"""One rank's call is refused: the ranks that wait for it hear which rank, where and why."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest
from job import NOTICE, Job, Process, assert_first_cause_stays, errors_within, kind_of

TIMEOUT = 10.0  # seconds; the timeout of a group whose test waits for it
LONG = 100.0  # the timeout of other groups, and while ranks start

BAD = {
    "core": ("reduce", "float32", "band"),
    "torch": ("all_gather_of_two_devices",),
}
WORDS = {
    "core": "band is not defined for float32",
    "torch": "expected all tensors of a call on one device, got one on cpu and one on meta",
}


@pytest.fixture(params=list(BAD))
def kind(request: pytest.FixtureRequest) -> str:
    return kind_of(request)


def refuse(rank: Process, kind: str) -> str:
    rank.tell(*BAD[kind])
    error = rank.error()
    assert error["error"] == "InvalidArgumentError" and WORDS[kind] in error["text"], error
    return str(error["text"])


@pytest.mark.parametrize(("hosts", "victim"), [("ab", 0), ("aab", 2)])
def test_the_refusal_replaces_the_timeout(
    tmp_path: Path, kind: str, hosts: str, victim: int
) -> None:
    with Job(tmp_path, hosts, kind, timeout=LONG) as job:
        job.do("use", "short", TIMEOUT)
        job.do("all_reduce", 16)
        refuse(job[victim], kind)
        waiting = job.others(victim)
        for rank in waiting:
            rank.tell("all_reduce", 16)
        errors = errors_within(waiting, TIMEOUT + NOTICE)
        for rank, error in zip(waiting, errors, strict=True):
            assert error["error"] == "InvalidArgumentError" and error["peer"] == victim, error
            assert f"rank {victim} on {socket.gethostname()} is missing in" in error["text"], error
            assert WORDS[kind] in error["text"], error
            assert "this collective may never complete: rank" in rank.log.read_text()  # long before
        assert_first_cause_stays(waiting, errors)
        for rank in job.ranks:
            rank.exits_cleanly()


def test_a_leaving_rank_reports_its_refusal_at_once(tmp_path: Path, kind: str) -> None:
    with Job(tmp_path, "aab", kind, timeout=LONG) as job:
        job.do("all_reduce", 16)
        refuse(job[1], kind)
        job[1].exits_cleanly()
        waiting = job.others(1)
        for rank in waiting:
            rank.tell("all_reduce", 16)
        errors = errors_within(waiting, NOTICE)
        for error in errors:
            assert error["error"] == "PeerFailedError" and error["peer"] == 1, error
            assert f"rank 1 on {socket.gethostname()} is missing" in error["text"], error
            assert WORDS[kind] in error["text"], error
        for rank in waiting:
            rank.exits_cleanly()


def test_a_corrected_call_is_no_failure(tmp_path: Path, kind: str) -> None:
    with Job(tmp_path, "ab", kind, timeout=LONG) as job:
        refuse(job[1], kind)
        job[0].tell("all_reduce", 16)
        deadline = time.monotonic() + NOTICE
        while "this collective may never complete" not in job[0].log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert job[1].do("all_reduce", 16) == 3.0
        assert job[0].value() == 3.0
        assert job.do("all_reduce", 16) == [3.0] * 2
        for rank in job.ranks:
            rank.exits_cleanly()


@pytest.mark.needs("torch")
def test_a_device_tensor_on_a_cpu_rank_is_rejected(tmp_path: Path) -> None:
    with Job(tmp_path, "ab", "torch", timeout=LONG) as job:
        job[1].tell("all_reduce_of_cuda")
        error = job[1].error()
        assert error["error"] == "InvalidArgumentError", error
        text = f"rank 1 on host {socket.gethostname()} has vendor cpu: expected a CPU tensor, got"
        assert text in error["text"] and "HETCOMM_VENDOR" in error["text"], error
        job[1].exits_cleanly()
        job[0].tell("all_reduce", 16)
        told = job[0].error(NOTICE)
        assert told["peer"] == 1 and text in told["text"], told
        job[0].exits_cleanly()


@pytest.mark.needs("torch")
def test_one_rank_reports_a_common_stall(tmp_path: Path) -> None:
    """A low rank reports the stall. Ranks whose turn comes later know it already."""
    size = 8
    log = {rank: {"HETCOMM_LOG_LEVEL": "debug"} for rank in range(size)}
    with Job(tmp_path, "ab" * (size // 2), timeout=LONG, settings=log) as job:
        for rank in job.ranks[:-1]:
            rank.do("submit", 16)
        deadline = time.monotonic() + 3 * NOTICE
        while any(waits(rank) == 0 for rank in job.ranks[:-1]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        line = "tells the other ranks that it waits"
        told = [rank.log.read_text().count(line) for rank in job.ranks]
        # Rank 1 tells first where rank 0 looks late.
        assert 1 <= sum(told) <= 3, told
        job[size - 1].do("submit", 16)
        job.do("wait", NOTICE)
        assert job.do("all_reduce", 16) == [sum(range(1, size + 1))] * size


def waits(rank: Process) -> int:
    return len(re.findall("has not completed within a second", rank.log.read_text()))


@pytest.mark.parametrize("days", [50, 999_999_999])
def test_a_timeout_of_many_days_works(tmp_path: Path, days: int) -> None:
    """More milliseconds than an int holds, and more nanoseconds than 64 bits hold."""
    seconds = days * 86_400.0
    with Job(tmp_path, "ab", "torch", timeout=seconds) as job:
        job.do("submit", 16)
        job.do("wait_at_most", seconds)
        assert job.do("all_reduce", 16) == [3.0] * 2
        for rank in job.ranks:
            rank.exits_cleanly()
