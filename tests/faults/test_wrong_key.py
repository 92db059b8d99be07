"""A rank with another job key, or without one: every rank has an error that names the culprit."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
from control_peers import Peer, contact_of, group_key_of, news, packed
from job import BOUND, NOTICE, Job, errors_within

RIGHT, WRONG = "0123456789abcdef" * 4, "fedcba9876543210" * 4
KEY, FILE = "HETCOMM_JOB_KEY", "HETCOMM_JOB_KEY_FILE"


@pytest.mark.parametrize("kind", ["core", "torch"])
@pytest.mark.parametrize("given", ["another", "none", "alone", "unusable"])
def test_a_rank_with_another_key_is_named_at_once(tmp_path: Path, kind: str, given: str) -> None:
    all_but_one, one = {
        "another": ({KEY: RIGHT}, {KEY: WRONG}),
        "none": ({KEY: RIGHT}, {}),
        "alone": ({}, {KEY: RIGHT}),
        "unusable": ({KEY: RIGHT}, {FILE: str(tmp_path / "missing")}),
    }[given]
    settings = {0: all_but_one, 1: all_but_one, 2: one}
    with Job(tmp_path, "abc", kind, settings=settings, joins=False) as job:
        errors = errors_within(job.ranks, BOUND)
    # torch's backend may wrap it in its own error, so the text counts.
    for error in errors[:2]:
        assert error["peer"] in (2, None), errors
        assert 'member/2"' in error["text"] and FILE in error["text"], errors
    host = socket.gethostname()
    expected = {
        "another": f"by rank 2 on host {host}: its job key differs",
        "none": "the rank that set it has no job key",
        "alone": f"rank 2 on host {host} has a job key",
        "unusable": "the rank that set it has no job key",
    }[given]
    assert all(expected in error["text"] for error in errors[:2]), errors
    assert FILE in errors[2]["text"], errors


def test_who_reads_the_store_cannot_end_a_job_with_a_key(tmp_path: Path) -> None:
    """The same bytes end a job without a key, so the test can fail."""
    for key, ends in (({}, True), ({KEY: RIGHT}, False)):
        folder = tmp_path / ("open" if ends else "keyed")
        folder.mkdir()
        with Job(folder, "ab", settings={0: key, 1: key}) as job:
            assert job.do("all_reduce", 1000) == [3.0, 3.0]
            members = {
                f"member/{rank}": opened((folder / "first" / f"member-{rank}").read_bytes())
                for rank in range(2)
            }
            key_without_secret = group_key_of(members)
            with Peer(contact_of(members["member/0"]), key_without_secret, 0, 1) as stranger:
                with contextlib.suppress(ConnectionError):  # refused already
                    stranger.send(
                        news(1, 1 << 40, packed(0, 5, 0, b"", b"planted by a stranger", b""))
                    )
                if ends:
                    job[1].tell("turn", 16)
                    job[0].tell("turn", 16)
                    # Rank 1 seems to be the sender, so nobody tells it.
                    told = job[0].answer(NOTICE)
                    told = told if "error" in told else job[0].answer(NOTICE)
                    assert "planted by a stranger" in told["text"], told
                    continue
                stranger.read_to_the_end()  # refused
            for _ in range(3):
                assert job.do("all_reduce", 1000) == [3.0, 3.0]
            assert "refused" in job[0].log.read_text()
            for rank in job.ranks:
                rank.exits_cleanly()


def opened(value: bytes) -> bytes:
    """The value without its seal, if it has one."""
    mark = b"hetcomm-sealed-1\n"
    if not value.startswith(mark):
        return value
    rest = value[len(mark) + 32 :]
    return rest[8 + int.from_bytes(rest[:8], "little") :]
