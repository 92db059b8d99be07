"""Groups made, used and destroyed many times leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import abilities
import pytest
from job import Job

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
        after = job.do("resources")
        for rank in job.ranks:
            rank.exits_cleanly()
    for rank, (then, now) in enumerate(zip(before, after, strict=True)):
        for what, slack in SLACK.items():
            assert now[what] <= then[what] + slack, f"rank {rank}: {what}: {then} -> {now}"
