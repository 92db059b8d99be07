"""Ranks that are silent but alive, leave early, make fewer calls, or abort."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from job import (
    BOUND,
    NOTICE,
    Job,
    assert_first_cause_stays,
    errors_within,
    kind_of,
    subfolder,
    wait_for,
)
from silence import without_silence
from undisturbed import undisturbed

TIMEOUT = 8.0  # seconds; the group's timeout for tests that wait for it
KINDS = ["core", "torch"]
SPIN = "import time\nend = time.monotonic() + 280\nwhile time.monotonic() < end: pass"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return kind_of(request)


@pytest.mark.parametrize(
    ("hosts", "victim", "where"),
    [
        ("aa", 1, ["with the ranks of its island"]),
        ("ab", 1, ["rank 1"]),
        ("aab", 2, ["rank 2"]),
        ("aba", 0, ["with the ranks of its island", "rank 0"]),
    ],
)
def test_a_stopped_rank_times_out_with_its_step(
    tmp_path: Path, hosts: str, victim: int, where: list[str]
) -> None:
    with Job(tmp_path, hosts) as job:
        job.do("use", "short", TIMEOUT)
        job.do("all_reduce", 1000)
        job[victim].signal(signal.SIGSTOP)
        waiting = job.others(victim)
        for rank in waiting:
            rank.tell("all_reduce", 1_000_000)
        errors = errors_within(waiting, TIMEOUT + NOTICE)
        for error in errors:
            assert error["error"] == "TimeoutError", error
            assert "within 8 s, waiting at step" in error["text"], error
            assert f"rank {victim} has given no sign of life for" in error["text"], error
            # A busy machine may keep another rank from its processor for two seconds, too.
            silent = error["text"].count("has given no sign of life for")
            assert error["peer"] == (victim if silent == 1 else -1), error
        assert any(words in error["text"] for error in errors for words in where), errors
        assert_first_cause_stays(waiting, errors)
        logs = "".join(rank.log.read_text() for rank in waiting)
        assert f"rank {victim} has given no sign of life for" in logs
        job[victim].signal(signal.SIGCONT)
        job[victim].tell("all_reduce", 1_000_000)
        # Data that the others sent before they gave up may complete this call, but no later one.
        answer = job[victim].answer()
        if answer == {"value": len(hosts) * (len(hosts) + 1) / 2}:
            job[victim].tell("all_reduce", 1_000_000)
            answer = job[victim].answer()
        assert answer.get("error") in ("TimeoutError", "PeerFailedError"), answer
        for rank in job.ranks:
            rank.exits_cleanly()


@pytest.mark.parametrize(
    ("hosts", "late"), [("aa", 0), ("aaa", 1), ("ab", 1), ("aab", 2), ("abab", 0)]
)
@pytest.mark.parametrize("timeout", [2.5, 5.0])
def test_a_timeout_names_the_late_rank(
    tmp_path: Path, hosts: str, late: int, timeout: float
) -> None:
    def errors_of_the_others() -> list[dict[str, Any]]:
        with Job(subfolder(tmp_path), hosts) as job:
            job.do("use", "short", timeout)
            job.do("all_reduce", 1000)
            waiting = job.others(late)
            for rank in waiting:
                rank.tell("all_reduce", 1000)
            errors = errors_within(waiting, timeout + NOTICE)
            assert_first_cause_stays(waiting, errors)
            assert {error["error"] for error in errors} == {"TimeoutError"}, errors
            return errors

    blames = re.compile(
        rf"within {timeout:g} s, waiting at step .* likely culprit \S+ m?s before: "
        rf"rank {late} on \S+ has not called all_reduce sum float32 x 1000.*"
        r"; its last, all_reduce .* #0, ended"
    )
    # On a busy machine other ranks may not answer in time, too.
    undisturbed(
        errors_of_the_others,
        lambda errors: all(
            blames.search(error["text"]) and error["peer"] == late for error in errors
        ),
        times=3,
    )


# After 30 s of silence heartbeats become rare, and keep-alive asks the host.
@pytest.mark.parametrize(
    ("hosts", "stopped"),
    [("aa", 0.0), ("ab", 0.0), ("aab", 0.0), pytest.param("ab", 40.0, marks=pytest.mark.slow)],
)
def test_a_continued_rank_goes_on(tmp_path: Path, hosts: str, stopped: float) -> None:
    """Silence is a warning, and no failure."""
    victim = len(hosts) - 1
    with Job(tmp_path, hosts) as job:
        job.do("all_reduce", 1000)
        job[victim].signal(signal.SIGSTOP)
        waiting = job.others(victim)
        for rank in waiting:
            rank.tell("all_reduce", 1000)
        warned = f"rank {victim} has given no sign of life for"
        wait_for(lambda: any(warned in rank.log.read_text() for rank in waiting))
        time.sleep(stopped)
        job[victim].signal(signal.SIGCONT)
        job[victim].tell("all_reduce", 1000)
        assert set(job.values()) == {len(hosts) * (len(hosts) + 1) / 2}
        again = f"rank {victim} gives signs of life again"
        wait_for(lambda: any(again in rank.log.read_text() for rank in waiting))
        for rank in job.ranks:
            rank.exits_cleanly()
        logs = "".join(rank.log.read_text() for rank in job.ranks)
        assert logs.count(warned) >= 1
        # The stopped rank judges nobody by the time that it was away.
        assert "rank 0 has given no sign" not in job[victim].log.read_text()


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_busy_interpreter_is_not_silent(tmp_path: Path, hosts: str, kind: str) -> None:
    # The interpreter is busy for twice the bound.
    settings = {rank: {"HETCOMM_PEER_TIMEOUT": "4"} for rank in range(2)}
    with Job(tmp_path, hosts, kind, settings=settings) as job:
        job.do("all_reduce", 1000)
        job[1].tell("submit_and_hold", 1, 1000, 8)
        job[0].tell("all_reduce", 1000)
        job.values()
        for rank in job.ranks:
            rank.exits_cleanly()
            assert "sign of life" not in rank.log.read_text()


@pytest.mark.alone
def test_ranks_on_a_crowded_machine_are_not_silent(tmp_path: Path) -> None:
    def told() -> list[str]:
        with Job(subfolder(tmp_path), "abab") as job:
            job.do("all_reduce", 1000)
            time.sleep(8)  # four times the bound
            job.do("all_reduce", 1_000_000)
            for rank in job.ranks:
                rank.exits_cleanly()
            logs = "".join(rank.log.read_text() for rank in job.ranks)
            return [line for line in logs.splitlines() if "sign of life" in line]

    crowd = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(20)]
    try:
        # A machine that stops a process for two seconds makes this process silent.
        undisturbed(told, lambda lines: not lines, times=3)
    finally:
        for process in crowd:
            process.kill()
            process.wait()


def test_a_timed_out_wait_leaves_the_operation_running(tmp_path: Path, kind: str) -> None:
    with Job(tmp_path, "ab", kind) as job:
        job[0].do("submit", 1000)
        job[0].tell("wait", 0.3)
        error = job[0].error(BOUND)
        assert error["error"] == "TimeoutError" and "it goes on" in error["text"], error
        job[1].do("submit", 1000)
        job.do("wait", BOUND)
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        for rank in job.ranks:
            rank.exits_cleanly()


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab"])
def test_an_early_exit_of_a_needed_rank_is_named(tmp_path: Path, hosts: str, kind: str) -> None:
    leaver = len(hosts) - 1

    def errors_after_an_exit() -> list[dict[str, Any]]:
        with Job(subfolder(tmp_path), hosts, kind) as job:
            job.do("all_reduce", 1000)
            job[leaver].exits_cleanly()  # without leaving the group first
            waiting = job.others(leaver)
            for rank in waiting:
                rank.tell("all_reduce", 1000)
            errors = errors_within(waiting, NOTICE)
            for error in errors:
                assert error["error"] == "PeerFailedError" and error["peer"] == leaver, error
                assert f"rank {leaver}" in error["text"], error
            assert_first_cause_stays(waiting, errors)
            for rank in waiting:
                rank.exits_cleanly()
            return errors

    # On a busy machine the error of the link may come before the reason.
    undisturbed(
        errors_after_an_exit,
        lambda errors: any("left" in error["text"] for error in errors),
        times=3,
    )


def test_an_exit_before_any_contact_is_named(tmp_path: Path) -> None:
    """There is no link to the exited rank, and none can be made. The error gives the reason."""

    def text_after_an_exit() -> str:
        with Job(subfolder(tmp_path), "ab") as job:
            job[1].exits_cleanly()
            job[0].tell("all_reduce", 1000)
            error = job[0].error(NOTICE)
            assert error["error"] == "PeerFailedError" and error["peer"] == 1, error
            job[0].exits_cleanly()
            return str(error["text"])

    # On a busy machine the error of the link may come before the reason.
    undisturbed(
        text_after_an_exit,
        lambda text: "rank 1 has left the group after 0 collectives" in text,
        times=3,
    )


@pytest.mark.parametrize("hosts", ["aab", "abc"])
@pytest.mark.parametrize("ending", ["exit", "leave"])
def test_an_early_exit_of_an_unneeded_rank_is_no_failure(
    tmp_path: Path, hosts: str, ending: str
) -> None:
    with Job(tmp_path, hosts) as job:
        job.do("all_reduce", 1000)
        if ending == "exit":
            job[2].exits_cleanly()
        else:
            job[2].do("leave")
        for _ in range(3):
            job[0].do("send", 1, 100_000)
            job[1].do("recv", 0, 100_000)
            job[0].do("wait", BOUND)
            job[1].do("wait", BOUND)
        for rank in job.ranks[:2]:
            rank.exits_cleanly()


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab"])
def test_simultaneous_exits_are_clean(tmp_path: Path, hosts: str, kind: str) -> None:
    """No rank takes the first exit for a failure; most programs end without destroy."""
    with Job(tmp_path, hosts, kind) as job:
        for count in (16, 300_000):
            assert set(job.do("all_reduce", count)) == {sum(range(1, len(hosts) + 1))}
        job.tell("exit")
        job.values()
        for rank in job.ranks:
            rank.ended_cleanly()
            assert "hetcomm" not in without_silence(rank.log.read_text())


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_one_call_fewer_is_an_error_naming_its_rank(tmp_path: Path, hosts: str, kind: str) -> None:
    with Job(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 1000)
        job[0].tell("all_reduce", 1000)
        job[1].do("leave")
        error = job[0].error(NOTICE)
        assert error["error"] == "PeerFailedError" and error["peer"] == 1, error
        assert "rank 1 has left" in error["text"] and "same calls" in error["text"], error
        for rank in job.ranks:
            rank.exits_cleanly()


@pytest.mark.parametrize("hosts", ["aa", "ab", "aabb"])
def test_abort_ends_pending_operations_everywhere(tmp_path: Path, hosts: str, kind: str) -> None:
    with Job(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 1000)
        waiting = job.others(0)
        for rank in waiting:
            rank.do("submit", 1_000_000)
            rank.tell("wait", BOUND)
        job[0].do("abort")
        errors = errors_within(waiting, NOTICE)
        for error in errors:
            assert error["error"] == "AbortedError" and error["peer"] == 0, error
            assert "rank 0 aborted" in error["text"], error
        assert_first_cause_stays(waiting, errors)
        for rank in job.ranks:
            rank.exits_cleanly()
