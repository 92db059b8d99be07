"""The state of all ranks, on request from outside and after a failure."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import abilities
import hostile
import pytest
from job import BOUND, NOTICE, Job, Process, errors_within, subfolder, wait_for
from undisturbed import undisturbed

from hetcomm.dump_command import ask


def dumped(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "hetcomm", "dump", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=BOUND,
    )


def culprits(text: str) -> list[str]:
    return [line for line in text.splitlines() if "likely culprit" in line]


def state_when(rank: Process, fits: Callable[[str], object]) -> str:
    """The state that `rank` tells, once it fits. A wait counts after a second. A rank without
    processor time for a second is a culprit, too, for that time."""
    text = ""

    def is_told() -> bool:
        nonlocal text
        text = ask(rank.process.pid, "state")
        return bool(fits(text))

    try:
        wait_for(is_told)
    except AssertionError:
        pytest.fail(f"the last state: {text}")
    return text


def log_with(ranks: Sequence[Process], words: str) -> str:
    """The log of the first rank whose log has `words`."""
    found: list[str] = []

    def logged() -> bool:
        found[:] = [log for log in (rank.log.read_text() for rank in ranks) if words in log]
        return bool(found)

    wait_for(logged)
    return found[0]


@pytest.mark.parametrize(("hosts", "stopped"), [("ab", 1), ("aab", 0), ("aabb", 2), ("aa", 1)])
def test_a_stopped_rank_is_named(tmp_path: Path, hosts: str, stopped: int) -> None:
    with Job(tmp_path, hosts) as job:
        job.do("all_reduce", 1000)
        job[stopped].signal(signal.SIGSTOP)
        others = job.others(stopped)
        for rank in others:
            rank.tell("all_reduce", 100_000)
        blames = re.compile(rf"rank {stopped} on \S+ does not answer within .* for it$")
        calls = "in all_reduce sum float32 x 100000 #1 for "

        def is_complete(text: str) -> bool:
            found = culprits(text)
            everybody = text.count(calls) == len(others)
            return everybody and len(found) == 1 and blames.search(found[0]) is not None

        text = state_when(others[0], is_complete)
        for number in range(len(hosts)):
            line = f"rank {number} on "
            assert (f"  {line}" in text) == (number != stopped), text
        assert re.search(r"at step \d+: \w+", text), text


@pytest.mark.parametrize("hosts", ["ab", "aab", "aa"])
def test_a_rank_that_is_stuck_in_python_answers(tmp_path: Path, hosts: str) -> None:
    late = len(hosts) - 1
    with Job(tmp_path, hosts) as job:
        job.do("all_reduce", 10)
        job[late].tell("keep_interpreter", int(BOUND))
        for rank in job.others(late):
            rank.tell("all_reduce", 20)
        blames = re.compile(
            rf"rank {late} on \S+ has not called all_reduce sum float32 x 20 .*"
            r"; its last, all_reduce sum float32 x 10 #0, ended"
        )
        state_when(
            job[late], lambda text: [bool(blames.search(one)) for one in culprits(text)] == [True]
        )


@pytest.mark.needs("emulated vendors")
def test_a_late_rank_is_named_if_its_kernel_holds_up_earlier_copies(tmp_path: Path) -> None:
    """All streams share one queue. The kernel that waits for rank 0 stands before copies of an
    earlier collective, in which no rank waits for another."""
    settings = {rank: {hostile.VARIABLE: "queues:1"} for rank in range(4)}
    with Job(tmp_path, "aaaa", vendors="nana", settings=settings) as job:
        job.do("all_reduce", 10)
        for number, rank in enumerate(job.ranks):
            rank.tell("submit_all_to_all", 60_001, int(number > 0))
        blames = re.compile(
            r"rank 0 on \S+ has not called all_reduce sum float32 x 1 #2, in which ranks 1, 2, 3 "
            r"have waited for .*; its last, all_to_all uint8 x 60001 #1, ended"
        )
        state_when(
            job[1], lambda text: [bool(blames.search(one)) for one in culprits(text)] == [True]
        )


def test_a_message_that_never_comes_names_its_sender(tmp_path: Path) -> None:
    with Job(tmp_path, "ab") as job:
        job[0].do("recv", 1, 100)
        blames = re.compile(r"rank 1 on \S+, for which rank 0 waits, is in no operation")
        text = state_when(job[1], blames.search)
        assert "recv uint8 x 100 with rank 1 tag 0" in text, text


def test_the_command_tells_each_job_once_and_writes_a_trace(tmp_path: Path) -> None:
    with Job(tmp_path, "abab") as job:
        for _ in range(3):
            job.do("all_reduce", 1_000_000)
        job.do("submit", 10)
        trace = tmp_path / "trace.json"

        def look() -> tuple[str, list[dict[str, Any]]]:
            found = dumped(job[1].process.pid, "--trace", trace)
            assert found.returncode == 0, found.stderr
            return found.stdout, json.loads(trace.read_text())["traceEvents"]

        def is_complete(found: tuple[str, list[dict[str, Any]]]) -> bool:
            """Every rank has answered within a second."""
            spans = {event["pid"] for event in found[1] if event["ph"] == "X"}
            return "no rank has waited for a second" in found[0] and spans == {0, 1, 2, 3}

        _, events = undisturbed(look, is_complete)
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        assert [name.split(" on ")[0] for name in names.values()] == [f"rank {r}" for r in range(4)]
        legs = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
        assert {"operations", "island"} < legs
        assert any(leg.startswith("recv from rank") for leg in legs), legs
        spans = [e for e in events if e["ph"] == "X"]
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
        # Each rank has the three operations, which take part in each other.
        for number in range(3):
            same = [e for e in spans if e["name"].endswith(f"#{number}")]
            assert len(same) == 4, same
            assert max(e["ts"] for e in same) < min(e["ts"] + e["dur"] for e in same)

        def times_told() -> list[int]:
            everything = dumped()
            assert everything.returncode == 0, everything.stderr
            lines = [f"process {rank.process.pid}:" for rank in job.ranks]
            told = [everything.stdout.count(line) for line in lines]
            assert min(told) > 0, everything.stdout
            return told

        # A rank that is late with its answer is asked itself, too.
        undisturbed(times_told, lambda told: max(told) == 1)


def test_a_process_that_hangs_up_does_not_stop_the_command(tmp_path: Path) -> None:
    deaf = """if True:
        import os, socket
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\\0hetcomm-dump-{os.getpid()}-0")
        listener.listen()
        print("listens", flush=True)
        while True:
            listener.accept()[0].close()
    """
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline()
            with Job(tmp_path, "ab") as job:
                found = dumped()
                assert found.returncode == 0, found.stderr
                assert f"process {other.pid}" in found.stderr
                for rank in job.ranks:
                    assert f"process {rank.process.pid}:" in found.stdout
        finally:
            other.kill()


def test_a_process_without_groups_is_refused() -> None:
    # Not this process, which may have groups of threads.
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        found = dumped(other.pid)
        other.kill()
    assert found.returncode == 2
    assert "expected a process with hetcomm groups" in found.stderr


def test_another_user_learns_nothing(tmp_path: Path) -> None:
    abilities.need("another user")
    with Job(tmp_path, "ab") as job:
        job.do("all_reduce", 10)
        pid = job[0].process.pid
        listed = Path(f"/proc/{pid}/net/unix").read_text()
        (name,) = re.findall(rf"@(hetcomm-dump-{pid}-\d+)", listed)
        child = os.fork()
        if child == 0:  # 0: no answer; 1: some; 2: another end
            status = 2
            try:
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(30)
                    connection.connect(f"\0{name}")
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        connection.sendall(b"state\n")
                        status = 1 if connection.recv(100) else 0
                    status = 0 if status == 2 else status
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        log_with([job[0]], "expected a process of this user or of root")
        assert "of 2 ranks" in ask(pid, "state")


def test_garbage_and_idle_clients_are_dropped(tmp_path: Path) -> None:
    with Job(tmp_path, "ab") as job:
        pid = job[0].process.pid
        listed = Path(f"/proc/{pid}/net/unix").read_text()
        (name,) = re.findall(rf"@(hetcomm-dump-{pid}-\d+)", listed)
        idle = []
        for request in (b"", b"x" * 1000, b"\0\n", b""):
            one = socket.socket(socket.AF_UNIX)
            one.connect(f"\0{name}")
            one.sendall(request)
            idle.append(one)
        begin = time.monotonic()
        assert "of 2 ranks" in ask(pid, "state")
        assert time.monotonic() - begin < BOUND
        assert job.do("all_reduce", 10) == [3.0, 3.0]
        for one in idle:
            one.close()


@pytest.mark.parametrize(("hosts", "victim"), [("aab", 0), ("aab", 2), ("abab", 1)])
def test_after_a_kill_one_rank_tells_the_state_of_all(
    tmp_path: Path, hosts: str, victim: int
) -> None:
    blames = re.compile(rf"rank {victim} on \S+ (is gone|does not answer within)")

    def told() -> list[str]:
        """The logs that have the state. A late rank tells the state, too."""
        with Job(subfolder(tmp_path), hosts) as job:
            job.do("all_reduce", 1000)
            survivors = job.others(victim)
            for rank in survivors:
                rank.tell("all_reduce", 2_000_000)
            job[victim].signal(signal.SIGKILL)
            errors_within(survivors, NOTICE)
            log_with(survivors, "state of group")
            for rank in survivors:
                rank.exits_cleanly()
            logs = [rank.log.read_text() for rank in survivors]
        for log in logs:
            assert log.count("state of group") <= 1, log
            assert any(map(blames.search, culprits(log))) or "state of group" not in log, log
        return [log for log in logs if "state of group" in log]

    def is_complete(logs: list[str]) -> bool:
        """One rank has told the state, and every survivor has answered within a second."""
        found = culprits(logs[0])
        lines = logs[0].count("all_reduce sum float32 x 2000000 #1")
        one = len(logs) == len(found) == 1 and "is gone" in found[0]
        return one and lines > len(hosts) - 2

    undisturbed(told, is_complete, times=3)


def test_after_different_calls_the_state_has_each(tmp_path: Path) -> None:
    def told() -> str:
        with Job(subfolder(tmp_path), "ab") as job:
            job[0].tell("all_reduce", 1000)
            job[1].tell("all_reduce", 2000)
            errors_within(job.ranks, NOTICE)
            return log_with(job.ranks, "state of group")

    begin = "ranks disagree about collective #0: rank 0 called all_reduce sum float32 x 1000"

    def is_complete(log: str) -> bool:
        """Both ranks have answered within a second."""
        end = "rank 1 called all_reduce sum float32 x 2000"
        return any(begin in line and end in line for line in culprits(log))

    undisturbed(told, is_complete, times=3)


def test_after_a_timeout_a_folder_has_the_state_and_a_trace(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    settings = {rank: {"HETCOMM_DUMP": str(folder)} for rank in range(3)}
    with Job(tmp_path, "aab", settings=settings) as job:
        job.do("use", "short", 5.0)
        job.do("all_reduce", 1000)
        job[0].signal(signal.SIGSTOP)
        for rank in job.others(0):
            rank.tell("all_reduce", 1_000_000)
        errors_within(job.others(0), 5.0 + NOTICE)
        log = log_with(job.others(0), "the state of all ranks")
        # A late rank may write the state, too.
        (path,) = re.findall(rf"is in ({folder}/\S+)\.txt, their last steps are in", log)
        text, trace = Path(f"{path}.txt"), Path(f"{path}.trace.json")
        assert "rank 0 on" in culprits(text.read_text())[0]
        events = json.loads(trace.read_text())["traceEvents"]
        assert any("does not answer" in str(e["args"].get("name")) for e in events)
        failed = [e for e in events if e["args"].get("outcome") == "timeout"]
        # A rank may answer before its own operation has failed.
        assert failed and {e["pid"] for e in failed} <= {1, 2}, failed
        assert {oct(file.stat().st_mode & 0o777) for file in (text, trace)} == {"0o600"}


def test_a_user_who_aborts_gets_no_report(tmp_path: Path) -> None:
    with Job(tmp_path, "ab") as job:
        job.do("all_reduce", 10)
        for rank in job.ranks:
            rank.tell("submit", 1000)
        job.values()
        job[0].do("abort")
        for rank in job.ranks:
            rank.exits_cleanly()
            assert "state of group" not in rank.log.read_text()
