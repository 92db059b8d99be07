"""Ranks that die: all other ranks soon get an error that names the dead rank, and exit cleanly."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from job import NOTICE, Job, Process, assert_first_cause_stays, errors_within

VICTIMS = [
    ("aaa", 1),
    ("aaa", 0),
    ("ab", 0),
    ("ab", 1),
    ("aab", 0),
    ("aab", 1),
    ("aab", 2),
    ("abab", 3),
]


def assert_names(errors: list[dict[str, Any]], victim: int) -> None:
    for error in errors:
        assert error["error"] == "PeerFailedError", error
        assert error["peer"] == victim and f"rank {victim}" in error["text"], error


def assert_survivors_end_cleanly(survivors: list[Process], errors: list[dict[str, Any]]) -> None:
    assert_first_cause_stays(survivors, errors)
    for rank in survivors:
        rank.exits_cleanly()


@pytest.mark.parametrize(("hosts", "victim"), VICTIMS)
def test_the_next_call_names_a_rank_killed_while_idle(
    tmp_path: Path, hosts: str, victim: int
) -> None:
    with Job(tmp_path, hosts) as job:
        job.do("all_reduce", 1000)
        job[victim].signal(signal.SIGKILL)
        survivors = job.others(victim)
        for rank in survivors:
            rank.tell("all_reduce", 1000)
        errors = errors_within(survivors, NOTICE)
        assert_names(errors, victim)
        assert_survivors_end_cleanly(survivors, errors)


@pytest.mark.parametrize(("hosts", "victim"), VICTIMS)
@pytest.mark.parametrize("count", [16, 2_000_000], ids=["small", "large"])
def test_a_kill_amid_all_reduces_is_reported(
    tmp_path: Path, hosts: str, victim: int, count: int
) -> None:
    with Job(tmp_path, hosts) as job:
        assert set(job.do("turn", count)) == {"turning"}
        job[victim].signal(signal.SIGKILL)
        survivors = job.others(victim)
        errors = errors_within(survivors, NOTICE)
        assert_names(errors, victim)
        assert_survivors_end_cleanly(survivors, errors)


@pytest.mark.parametrize(("hosts", "victim"), [("aab", 0), ("aab", 2)])
def test_a_kill_after_others_began_is_reported(tmp_path: Path, hosts: str, victim: int) -> None:
    """The other ranks are in the middle of a large operation, because the victim never joined
    it."""
    with Job(tmp_path, hosts) as job:
        job.do("all_reduce", 1000)
        survivors = job.others(victim)
        for rank in survivors:
            rank.do("submit", 4_000_000)
            rank.do("submit", 1000)  # and with one pending behind it
        job[victim].signal(signal.SIGKILL)
        for method, argument in (("wait", 2 * NOTICE), ("wait", 2 * NOTICE), ("all_reduce", 16)):
            for rank in survivors:
                rank.tell(method, argument)
            assert_names(errors_within(survivors, NOTICE), victim)
        for rank in survivors:
            rank.exits_cleanly()


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("direction", ["send", "recv"])
def test_a_kill_during_a_message_is_reported(tmp_path: Path, hosts: str, direction: str) -> None:
    with Job(tmp_path, hosts) as job:
        job[0].do(direction, 1, 50_000_000)  # too large to be sent before the receive
        job[1].signal(signal.SIGKILL)
        job[0].tell("wait", 2 * NOTICE)
        errors = errors_within([job[0]], NOTICE)
        assert_names(errors, 1)
        assert_survivors_end_cleanly([job[0]], errors)


def test_a_kill_before_a_receive_is_reported(tmp_path: Path) -> None:
    """The link breaks before the receive is posted, and the news comes afterwards."""
    with Job(tmp_path, "ab") as job:
        job.do("all_reduce", 1000)
        job[0].do("send", 1, 50_000_000)  # UCX announces the message, and waits for the receive
        job.do("all_reduce", 1000)
        job[0].signal(signal.SIGKILL)
        job[1].do("recv", 0, 50_000_000)
        job[1].tell("wait", 2 * NOTICE)
        errors = errors_within([job[1]], NOTICE)
        assert_names(errors, 0)
        assert_survivors_end_cleanly([job[1]], errors)


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_a_kill_survived_by_a_child_is_reported(tmp_path: Path, hosts: str) -> None:
    """A child of fork() has inherited the sockets. Its parent must not look alive."""
    with Job(tmp_path, hosts) as job:
        job.do("all_reduce", 1000)
        job[1].do("fork")
        job.do("all_reduce", 1000)  # the child has disturbed no rank
        job[1].signal(signal.SIGKILL)
        survivors = job.others(1)
        for rank in survivors:
            rank.tell("all_reduce", 1000)
        errors = errors_within(survivors, NOTICE)
        assert_names(errors, 1)
        assert_survivors_end_cleanly(survivors, errors)


@pytest.mark.parametrize(("hosts", "victims"), [("aabb", (0, 2)), ("aabb", (2, 3))])
def test_several_kills_at_once_are_reported(
    tmp_path: Path, hosts: str, victims: tuple[int, int]
) -> None:
    with Job(tmp_path, hosts) as job:
        job.do("turn", 10_000)
        for victim in victims:
            job[victim].signal(signal.SIGKILL)
        survivors = [rank for i, rank in enumerate(job.ranks) if i not in victims]
        errors = errors_within(survivors, NOTICE)
        assert all(error["error"] == "PeerFailedError" for error in errors)
        assert all(error["peer"] in victims for error in errors)
        assert_survivors_end_cleanly(survivors, errors)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("hosts", "victim"), [("aab", 0), ("aab", 2)])
def test_a_kill_of_the_store_rank_is_reported(tmp_path: Path, hosts: str, victim: int) -> None:
    with Job(tmp_path, hosts, "torch", store_on_rank_0=True) as job:
        job.do("turn", 500_000)
        job[victim].signal(signal.SIGKILL)
        survivors = job.others(victim)
        errors = errors_within(survivors, NOTICE)
        assert_names(errors, victim)
        assert_first_cause_stays(survivors, errors)
        survivors[0].do("leave")  # with and without a pending operation
        for rank in survivors:
            rank.exits_cleanly()
