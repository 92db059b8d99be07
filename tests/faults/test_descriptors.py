"""A rank with too few descriptors reports this, tells all ranks, and exits cleanly."""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from job import BOUND, NOTICE, Job, errors_within

FEW = Path(__file__).with_name("few_descriptors.py")
NEEDED = 5  # for an executor without a transport


def test_an_executor_without_descriptors_says_why_and_keeps_none() -> None:
    subprocess.run([sys.executable, FEW, str(NEEDED)], check=True, timeout=60)


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_all_ranks_hear_of_a_rank_without_descriptors(tmp_path: Path, hosts: str) -> None:
    few = {1: {"SPARE_DESCRIPTORS": str(NEEDED - 1), "HETCOMM_UCX_LIBRARY": "/nowhere"}}
    with Job(tmp_path, hosts, settings=few, joins=False) as job:
        # From the start of the processes on. The timeout of the group would be another error.
        other, error = errors_within(job.ranks, BOUND)
        assert error["error"] == "TransportError", error
        assert (other["error"], other["peer"]) == ("PeerFailedError", 1), other
        for told in (other, error):
            assert "rank 1 on " in told["text"], told
            assert "Too many open files; raise the descriptor limit" in told["text"], told
        for rank in job.ranks:
            rank.exits_cleanly()


def test_a_first_long_message_without_descriptors_gets_the_reason(tmp_path: Path) -> None:
    """UCX opens sockets to choose a protocol, also once the link is there."""
    with Job(tmp_path, "ab") as job:
        job.do("greet")
        pid = job[1].process.pid
        used = {int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()}
        free = next(number for number in itertools.count() if number not in used)
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, limits[1]))
        job.tell("greet", 1 << 20)
        other, error = errors_within(job.ranks, NOTICE)
        for told in (other, error):
            assert told["error"] == "TransportError", told
            assert "Too many open files; raise the descriptor limit" in told["text"], told
            assert "seen by rank 1" in told["text"], told
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        for rank in job.ranks:
            rank.exits_cleanly()


def test_too_few_descriptors_for_ucx_end_no_process(tmp_path: Path) -> None:
    """UCX itself would abort the process of rank 1 at its first message."""
    few = {1: {"SPARE_DESCRIPTORS": "13"}}
    with Job(tmp_path, "ab", settings=few) as job:
        job[1].tell("all_reduce", 1000)
        (error,) = errors_within([job[1]], NOTICE)
        job[0].tell("all_reduce", 1000)
        (other,) = errors_within([job[0]], NOTICE)
        for told in (other, error):
            assert told["error"] == "TransportError", told
            assert "UCX: expected 16 free descriptors; got " in told["text"], told
            assert "raise the descriptor limit" in told["text"], told
            assert "seen by rank 1" in told["text"], told
        for rank in job.ranks:
            rank.exits_cleanly()
