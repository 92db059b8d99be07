"""The progress thread survives failures of operations, and never waits for other threads."""

from __future__ import annotations

from pathlib import Path

import pytest
import shims
from abilities import need
from job import NOTICE, Job, assert_first_cause_stays, errors_within


@pytest.fixture(scope="module")
def no_memory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The value of LD_PRELOAD that makes allocations fail."""
    need("compiler")
    return shims.preloaded("no_memory", tmp_path_factory.mktemp("no_memory"))


# A run that has not begun names its scratch: "no memory for". A later one says "no memory left".
NO_MEMORY = "no memory "


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_missing_memory_fails_the_group(
    tmp_path: Path, no_memory: str, hosts: str, count: int
) -> None:
    with Job(tmp_path, hosts, settings={0: {"LD_PRELOAD": no_memory}}) as job:
        job.do("all_reduce", 1000)
        job[0].do("submit", 1000)
        job[0].do("starve", count)
        job[0].tell("wait", 2 * NOTICE)
        (error,) = errors_within([job[0]], NOTICE)
        assert error["error"] == "AbortedError" and NO_MEMORY in error["text"], error
        job[1].tell("all_reduce", 1000)
        other = job[1].answer(NOTICE)
        if "value" in other:  # rank 0 had sent all its data before
            job[1].tell("all_reduce", 1000)
            other = job[1].answer(NOTICE)
        assert other["error"] == "AbortedError" and NO_MEMORY in other["text"], other
        assert_first_cause_stays(job.ranks, [error, other])
        for rank in job.ranks:
            rank.exits_cleanly()


@pytest.mark.parametrize("kind", ["core", "array", "torch"])
@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_held_interpreter_delays_no_operation(tmp_path: Path, hosts: str, kind: str) -> None:
    """Rank 0 releases the memory of its operations only when its interpreter is free again."""
    if kind == "torch":
        need("torch")
    with Job(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 1000)
        job[0].tell("submit_and_hold", 5, 1000, 8)
        for _ in range(5):
            job[1].do("all_reduce", 1000)
        others_over = job[1].do("clock")
        assert others_over < job[0].value()
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        for rank in job.ranks:
            rank.exits_cleanly()


def test_a_wait_ends_in_time_while_another_group_is_busy(tmp_path: Path) -> None:
    with Job(tmp_path, "aa") as job:
        job[0].do("submit", 1000)
        job.do("use", "second")
        job.do("submit_many", 500, 4_000_000)
        assert job[0].do("outlast_wait", 0.2), "the wait was as long as the others' operations"


@pytest.mark.needs("emulated vendors")
@pytest.mark.parametrize("delays", range(4))
def test_a_copy_comes_before_later_calls_in_a_shared_queue(tmp_path: Path, delays: int) -> None:
    """The barrier waits in the NVIDIA island for a rank that waits for a message from the copy."""
    hostile = {
        "HETCOMM_EMULATED_NETWORKS": "Socket",
        "HETCOMM_EMULATED_HOSTILE": f"queues:1,delays:{delays}",
    }
    settings = dict.fromkeys(range(6), hostile)
    with Job(tmp_path, "cabacb", vendors="annnan", timeout=20.0, settings=settings) as job:
        for _ in range(30):
            job.do("broadcast_and_barrier", 2, 400_000)


@pytest.mark.needs("emulated vendors")
def test_a_blocked_library_delays_no_other_group(tmp_path: Path) -> None:
    # A call that never ends would hold up all streams of a shared hardware queue.
    own_queues = {"HETCOMM_EMULATED_HOSTILE": "poison"}
    settings = {0: own_queues, 1: own_queues | {"HETCOMM_EMULATED_FAULT": "call_hang:3"}}
    with Job(tmp_path, "xx", vendors="nn", settings=settings) as job:
        job.do("use", "second")
        assert job.do("all_reduce", 1000) == [3.0] * 2
        job.do("use", "first")
        for _ in range(3):
            assert job.do("all_reduce", 1000) == [3.0] * 2
        job[0].do("submit", 1000)
        job[1].do("submit_in_thread", 1000)  # that call stays inside the library
        job.do("use", "second")
        assert job.do("all_reduce", 1000) == [3.0] * 2
        assert job[1].do("submits"), "the library has returned; this shows nothing"
        job.tell("wait", 60.0)
        _, late_one = errors_within(job.ranks, 60.0)
        assert "did not return within 30 s" in late_one["text"], late_one
        for rank in job.ranks:
            rank.exits_cleanly()
