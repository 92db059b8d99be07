"""Groups made, used and destroyed many times leave nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

import abilities
import pytest
from job import NOTICE, Job

WARM_UP = 20
GROUPS = 100
# torch and UCX may keep a few pooled ones more; a leak would be 80 or more.
SLACK = {
    "descriptors": 4,
    "sockets": 4,
    "threads": 1,
    "files in /dev/shm": 10,  # files of other jobs on this machine
    "maps of islands": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["core", "torch"])
@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_groups_leave_nothing_behind(tmp_path: Path, hosts: str, kind: str) -> None:
    if kind == "torch":
        abilities.need("torch")
    with Job(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 1000)
        job.do("cycle", 0, WARM_UP)
        before = job.do("resources")
        job.do("cycle", WARM_UP, GROUPS - WARM_UP)
        deadline = time.monotonic() + 2 * NOTICE
        while kept := more(before, job.do("resources")):
            assert time.monotonic() < deadline, kept  # what the last group held ends soon
            time.sleep(0.1)
        for rank in job.ranks:
            rank.exits_cleanly()


def more(before: list[dict[str, int]], after: list[dict[str, int]]) -> list[str]:
    """The resources of which a rank holds more than before."""
    return [
        f"rank {rank}: {what}: {then} -> {now}"
        for rank, (then, now) in enumerate(zip(before, after, strict=True))
        for what, slack in SLACK.items()
        if now[what] > then[what] + slack
    ]
