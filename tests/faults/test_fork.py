"""A child of fork() cannot use its parent's groups, gets an error at every call, and disturbs no
rank."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from job import Job

LAYOUTS = pytest.mark.parametrize(
    ("kind", "hosts"), list(itertools.product(["core", "array", "torch"], ["aa", "ab"]))
)


def started(folder: Path, hosts: str, kind: str) -> Job:
    if kind == "torch":
        pytest.importorskip("torch")
    return Job(folder, hosts, kind, timeout=30.0)


def assert_refused(answer: dict[str, Any]) -> None:
    assert answer["error"] == "InvalidArgumentError", answer
    assert "child by fork()" in answer["text"] and "spawn" in answer["text"], answer


def assert_no_rank_disturbed(job: Job) -> None:
    ranks = len(job.ranks)
    for count in (2, 100_000):
        assert job.do("all_reduce", count) == [ranks * (ranks + 1) / 2] * ranks
    for rank in job.ranks:
        rank.exits_cleanly()


@LAYOUTS
def test_every_call_of_a_child_is_rejected(tmp_path: Path, hosts: str, kind: str) -> None:
    with started(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 2)
        calls = [["all_reduce", 2], ["all_reduce", 100_000], ["submit", 2]]
        if kind == "core":
            calls += [["send", 1, 8], ["recv", 1, 8], ["paths"]]
        if kind == "array":
            calls += [["split"]]
        told = job[0].do("in_child", calls)
        for answer in told["answers"]:
            assert_refused(answer)
        assert told["status"] == 0
        assert_no_rank_disturbed(job)


@LAYOUTS
def test_a_child_closing_a_group_closes_nothing(tmp_path: Path, hosts: str, kind: str) -> None:
    with started(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 2)
        for ends in ([["abort"]], [["leave"]], []):
            for rank in job.ranks:
                told = rank.do("in_child", ends)
                assert all("value" in answer for answer in told["answers"]), told
                assert told["status"] == 0
            job.do("all_reduce", 100_000)
        assert_no_rank_disturbed(job)


@LAYOUTS
def test_a_pending_operation_fails_in_a_child(tmp_path: Path, hosts: str, kind: str) -> None:
    with started(tmp_path, hosts, kind) as job:
        job[0].do("submit", 1000)
        told = job[0].do("in_child", [["wait", 20.0]])
        assert told["answers"][0]["error"] == "InvalidArgumentError", told
        assert "fork" in told["answers"][0]["text"]
        assert told["status"] == 0
        job[1].do("submit", 1000)
        job.do("wait", 20.0)
        assert_no_rank_disturbed(job)


@LAYOUTS
def test_no_lock_blocks_children_of_a_busy_process(tmp_path: Path, hosts: str, kind: str) -> None:
    with started(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 2)  # imports under locks of Python's
        children = 15 if kind == "torch" else 40  # a child of torch takes 0.3 s to end
        job.tell("reduce_and_fork", 10 * children, children)
        for answer in job.values():
            assert answer == [0] * children
        assert_no_rank_disturbed(job)


@pytest.mark.parametrize("kind", ["core", "array", "torch"])
@pytest.mark.parametrize("hosts", ["aa", "aaa"])
def test_children_can_make_their_own_group(tmp_path: Path, hosts: str, kind: str) -> None:
    total = len(hosts) * (len(hosts) + 1) / 2
    with started(tmp_path, hosts, kind) as job:
        job.do("all_reduce", 2)
        for told in job.do(
            "in_child", [["use", "second"], ["all_reduce", 2], ["all_reduce", 9999]]
        ):
            assert [answer.get("value") for answer in told["answers"]] == [None, total, total], told
            assert told["status"] == 0
        assert_no_rank_disturbed(job)


def test_a_group_of_children_without_ucx_is_an_error(tmp_path: Path) -> None:
    with started(tmp_path, "ab", "core") as job:
        job.do("all_reduce", 2)
        for told in job.do("in_child", [["use", "second"], ["all_reduce", 2]]):
            errors = [answer for answer in told["answers"] if "error" in answer]
            assert errors and any("fork" in error["text"] for error in errors), told
            assert told["status"] == 0
        assert_no_rank_disturbed(job)


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_data_loader_workers_run(tmp_path: Path, hosts: str) -> None:
    with started(tmp_path, hosts, "torch") as job:
        job.do("all_reduce", 2)
        assert job.do("load_data", "fork", 3) == [3 * sum(range(64))] * 2
        assert job.do("run_processes", "fork", 3) == [[0, 0, 0]] * 2
        assert_no_rank_disturbed(job)
