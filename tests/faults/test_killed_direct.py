"""A peer dies in the middle of a message from or into device memory."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from job import NOTICE, Job, assert_first_cause_stays, errors_within

pytestmark = pytest.mark.needs("emulated vendors")
BYTES = 64 << 20


def direct(rank: int) -> dict[str, str]:
    """The environment of an island of its own, in which a copy takes longer than the test."""
    return {
        "HETCOMM_ISLAND": f"island{rank}",
        "HETCOMM_EMULATED_DIRECT": "1",
        "HETCOMM_DIRECT_BYTES": "0",
        "HETCOMM_EMULATED_LATENCY": "10000000",
    }


@pytest.mark.parametrize("victim_sends", [False, True])
def test_a_kill_amid_a_direct_message_is_reported(tmp_path: Path, victim_sends: bool) -> None:
    """The message is under way on one side. The third rank hears of the death, too."""
    settings = {rank: direct(rank) for rank in range(3)}
    with Job(tmp_path, "aaa", vendors="nnc", timeout=60.0, settings=settings) as job:
        for sender, receiver in ((0, 1), (1, 0)):  # makes direct links
            job[sender].do("send", receiver, 1000)
            job[receiver].do("recv", sender, 1000)
            assert job[sender].do("wait", 30) == job[receiver].do("wait", 30)
        if victim_sends:
            job[1].do("send", 0, BYTES)
            job[0].do("recv", 1, BYTES)
        else:
            job[0].do("send", 1, BYTES)
        job[2].do("recv", 0, 1000)  # never sent
        job[1].signal(signal.SIGKILL)
        for rank in (0, 2):
            job[rank].tell("wait", 60)
        errors = errors_within([job[0], job[2]], NOTICE)
        for error in errors:
            assert error["error"] == "PeerFailedError" and error["peer"] == 1, error
        assert_first_cause_stays([job[0], job[2]], errors)
        for rank in (job[0], job[2]):
            rank.exits_cleanly()
