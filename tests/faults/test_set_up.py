"""Ranks that die or fail while a group is set up: all other ranks soon name them."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from communicators import run_ranks
from control_peers import OpenStore
from job import NOTICE, Job, errors_within
from test_killed import assert_names

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Spec

TIMEOUT = 3.0  # seconds
STAGES = ("member", "agreed", "named", "ready")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("hosts", "victim"), [("aa", 0), ("aa", 1), ("ab", 0), ("abcab", 2)])
def test_a_rank_that_dies_in_set_up_is_named(
    tmp_path: Path, hosts: str, victim: int, stage: str
) -> None:
    (tmp_path / "first").mkdir()
    settings = {rank: {"TOGETHER": "1"} for rank in range(len(hosts))}
    settings[victim]["DIES_AFTER"] = stage
    with Job(tmp_path, hosts, timeout=120.0, settings=settings, joins=False) as job:
        job[victim].process.wait(60)
        survivors = job.others(victim)
        begin = time.monotonic()
        found = [rank.answer() for rank in survivors]
        if stage == "ready":  # the others may have joined
            for rank, answer in zip(survivors, found, strict=True):
                if answer.get("value") == "joined":
                    rank.tell("all_reduce", 16)
            found = [
                rank.answer() if "value" in answer else answer
                for rank, answer in zip(survivors, found, strict=True)
            ]
        assert time.monotonic() - begin < NOTICE
        assert_names(found, victim)
        for rank in survivors:
            rank.exits_cleanly()


class FailingStore(OpenStore):
    """Rank 1 cannot read one key, after it has published its own part of the stage."""

    def __init__(self, shared: dict[str, bytes], rank: int, fails_at: str) -> None:
        super().__init__(shared, rank)
        self.fails_at = fails_at

    def get(self, key: str, timeout: timedelta) -> bytes:
        if self.rank == 1 and key == self.fails_at:
            raise RuntimeError("planted")
        return super().get(key, timeout)


@pytest.mark.parametrize("key", ["member/0", "agreed/0", "named/0", "ready/0"])
def test_a_failure_outside_of_a_stage_reaches_all_ranks(key: str) -> None:
    shared: dict[str, bytes] = {}

    def program(communicator: Communicator) -> None:
        data = bytearray(64)
        spec = Spec(Collective.all_reduce, count=16, in_place=True)
        communicator.submit(spec, data, will_wait=True).wait()

    begin = time.monotonic()
    results = run_ranks(
        "abab", program, store=lambda rank: FailingStore(shared, rank, key), timeout=50.0
    )
    assert time.monotonic() - begin < NOTICE
    for result in results:
        assert isinstance(result, _core.Error), results
        assert "planted" in str(result) and "rank 1" in str(result), results


class LateStore(OpenStore):
    """Rank 1 fails just before the deadline, and its failure comes just after that."""

    def set(self, key: str, value: bytes) -> None:
        if self.rank == 1 and key == "named/1":
            if value.startswith(b"+"):
                time.sleep(TIMEOUT - 0.3)
                raise RuntimeError("planted")
            time.sleep(0.8)
        super().set(key, value)


def test_a_failure_at_the_deadline_reaches_all_ranks() -> None:
    shared: dict[str, bytes] = {}
    results = run_ranks(
        "ab", lambda _: None, store=lambda rank: LateStore(shared, rank), timeout=TIMEOUT
    )
    for result in results:
        assert isinstance(result, _core.Error), results
        assert "planted" in str(result) and "rank 1" in str(result), results


def test_the_cause_of_a_rank_that_ends_at_once_wins(tmp_path: Path) -> None:
    """It publishes its failure, and its connections end."""
    settings = {1: {"HETCOMM_SELECT": "all_reduce:nonsense"}}
    with Job(tmp_path, "aaa", timeout=120.0, settings=settings, joins=False) as job:
        for error in errors_within(job.ranks, NOTICE):
            assert error["peer"] == 1 and "nonsense" in error["text"], error
