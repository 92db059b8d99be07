"""System calls that fail, or never return, stop no news and no rank; see system_calls.cc."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest
import shims
from abilities import need
from job import NOTICE, Job, errors_within, wait_for
from test_strangers import control_port

END = 25.0  # seconds for a process to end beside a file system that stands still


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The value of LD_PRELOAD."""
    need("compiler")
    return shims.preloaded("system_calls", tmp_path_factory.mktemp("system_calls"))


STILL = {
    "metrics": ("HETCOMM_METRICS", "STILL_FOLDER"),
    "dump": ("HETCOMM_DUMP", "STILL_FOLDER"),
    "log": ("", "STILL_LOG"),
}


@pytest.mark.parametrize("what", STILL)
@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_a_file_system_that_stands_still_stops_no_news(
    tmp_path: Path, preloaded: str, hosts: str, what: str
) -> None:
    setting, shim = STILL[what]
    folder, flag = tmp_path / "still", tmp_path / "flag"
    folder.mkdir()
    more = {"LD_PRELOAD": preloaded, "STAND_STILL": str(flag), shim: str(folder)}
    if what == "log":
        more["HETCOMM_LOG_LEVEL"] = "info"
    else:
        more[setting] = str(folder)
    if what == "metrics":
        flag.touch()  # the first file comes with the first group
    with Job(tmp_path, hosts, settings=dict.fromkeys(range(3), more)) as job:
        assert job.do("all_reduce", 1000) == [6.0] * 3
        flag.touch()
        job.tell("turn", 1000)
        assert [rank.value() for rank in job.ranks] == ["turning"] * 3
        job[2].signal(signal.SIGKILL)
        for error in errors_within(job.ranks[:2], NOTICE):
            assert error["error"] == "PeerFailedError" and error["peer"] == 2, error
        if what == "metrics":
            wait_for(lambda: "is not written after 10 s" in job[0].log.read_text())
        began = time.monotonic()
        for rank in job.ranks[:2]:
            assert rank.do("exit") == "exiting"
        for rank in job.ranks[:2]:
            assert rank.process.wait(END) == 0
        assert time.monotonic() - began < END
        logs = [rank.log.read_text() for rank in job.ranks[:2]]
        if what != "log":
            told = sum(log.count("its file system stands still") for log in logs)
            assert told == (2 if what == "metrics" else 1), logs
        if what == "dump":
            assert any("likely culprit" in log for log in logs), logs


def test_metrics_go_on_with_their_file_system(tmp_path: Path, preloaded: str) -> None:
    folder, flag = tmp_path / "still", tmp_path / "flag"
    folder.mkdir()
    flag.touch()
    more = {"LD_PRELOAD": preloaded, "STAND_STILL": str(flag), "STILL_FOLDER": str(folder)}
    with Job(tmp_path, "aa", settings={0: {**more, "HETCOMM_METRICS": str(folder)}}) as job:
        wait_for(lambda: "is not written after 10 s" in job[0].log.read_text())
        flag.unlink()
        wait_for(lambda: "goes on; files left out: 1" in job[0].log.read_text())
        wait_for(lambda: bool(list(folder.glob("hetcomm-*.prom"))))
        for rank in job.ranks:
            rank.exits_cleanly()
        assert not list(folder.iterdir())


def test_no_watch_for_a_stranger_fails_no_group(tmp_path: Path, preloaded: str) -> None:
    flag = tmp_path / "flag"
    more = {"LD_PRELOAD": preloaded, "NO_WATCHES": str(flag)}
    with Job(tmp_path, "ab", settings={0: more}) as job:
        assert job.do("all_reduce", 1000) == [3.0] * 2
        flag.touch()
        with socket.create_connection(("127.0.0.1", control_port(tmp_path)), NOTICE):
            wait_for(lambda: "raise fs.epoll.max_user_watches" in job[0].log.read_text())
            flag.unlink()  # for UCX, which ends the process without a watch
            assert job.do("all_reduce", 1000) == [3.0] * 2
        for rank in job.ranks:
            rank.exits_cleanly()


def test_an_exception_of_any_type_fails_the_group_alone(tmp_path: Path, preloaded: str) -> None:
    flag = tmp_path / "flag"
    with Job(tmp_path, "ab", settings={0: {"LD_PRELOAD": preloaded, "THROW": str(flag)}}) as job:
        assert job.do("all_reduce", 1000) == [3.0] * 2
        flag.touch()
        wait_for(lambda: not flag.exists())
        job.tell("all_reduce", 1000)
        for error in errors_within(job.ranks, NOTICE):
            assert error["error"] == "AbortedError", error
            assert "an exception of the type i came" in error["text"], error
        for rank in job.ranks:
            rank.exits_cleanly()


def test_the_end_of_the_progress_thread_ends_no_process(tmp_path: Path, preloaded: str) -> None:
    flag = tmp_path / "flag"
    with Job(tmp_path, "aa", settings={0: {"LD_PRELOAD": preloaded, "END": str(flag)}}) as job:
        assert job.do("all_reduce", 1000) == [3.0] * 2
        flag.touch()
        wait_for(lambda: not flag.exists())
        assert job.do("all_reduce", 1000) == [3.0] * 2  # the callers move their operations
        for rank in job.ranks:
            rank.exits_cleanly()


def test_a_text_has_the_reason_of_its_system_call(tmp_path: Path, preloaded: str) -> None:
    """Although allocations for the text change errno."""
    more = {"LD_PRELOAD": preloaded, "CHANGE_ERRNO": "1", "NO_BIND": "1"}
    with Job(tmp_path, "aa", settings={0: more}, joins=False) as job:
        for error in errors_within(job.ranks, NOTICE):
            words = "cannot listen for control connections on 127.0.0.1: Permission denied"
            assert words in error["text"], error


def test_each_reason_of_a_system_call_is_taken_first() -> None:
    """A text that is made beside strerror(errno) may have changed errno."""
    root = Path(__file__).parents[2]
    sources = [path for part in ("csrc", "bindings") for path in (root / part).rglob("*.*")]
    found = [path.name for path in sources if "strerror(errno)" in path.read_text()]
    assert len(sources) > 300 and found == []


# A driver that stands still while its caller has the engine's lock. No call of the other member
# waits for the device, which would wait for that process.
CALM = {"HETCOMM_EMULATED_HOSTILE": "poison"}
STUCK = CALM | {"HETCOMM_EMULATED_FAULT": "query_hang:0"}


@pytest.mark.needs("emulated vendors")
def test_a_stuck_driver_delays_no_heartbeat_no_abort_and_no_leaving(
    tmp_path: Path, preloaded: str
) -> None:
    """Also if the wall clock is set back meanwhile."""
    settings = {0: CALM, 1: STUCK | {"LD_PRELOAD": preloaded, "CLOCK_AHEAD": "1"}}
    with Job(tmp_path, "xx", vendors="nn", settings=settings) as job:
        job[1].do("submit_in_thread", 300_000)  # that thread stays inside the driver
        assert job[0].do("all_reduce", 300_000) == 1.0  # the member's kernel has begun
        job[0].tell("all_reduce", 300_000)
        time.sleep(5.0)  # far more than HETCOMM_PEER_TIMEOUT
        assert "no sign of life" not in job[0].log.read_text()
        assert job[1].do("submits"), "the driver has returned; this shows nothing"
        job[1].tell("abort")
        job[1].value(NOTICE)
        (error,) = errors_within([job[0]], NOTICE)
        assert error["error"] == "AbortedError" and error["peer"] == 1, error
        job[1].tell("leave")
        job[1].value(END)
        assert "stands still inside a driver" in job[1].log.read_text()
        job[0].exits_cleanly()
