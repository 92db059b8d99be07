"""Plain processes in place of an emulated cluster: the environment of ranks, and the end of a
run."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hetcomm.demo import loopback
from hetcomm.emulate import Cluster, Host, Nic

HOSTS = (Host("north", 1, (Nic(),)), Host("south", 1, (Nic(),)))


def test_ranks_know_their_hosts_and_only_the_loopback(tmp_path: Path) -> None:
    names = ["HETCOMM_HOST_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"]
    show = [sys.executable, "-c", f"import os; print(*map(os.environ.get, {names}))"]
    result = loopback.run(Cluster(HOSTS, order="block"), show, timeout=60, stdout=tmp_path)
    assert result.ok
    assert result.hosts == ("north", "south")
    assert (tmp_path / "rank-0.log").read_text() == "north 0 2 0 127.0.0.1\n"
    assert (tmp_path / "rank-1.log").read_text() == "south 1 2 0 127.0.0.1\n"


def test_the_first_rank_to_fail_is_named_and_the_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "GRACE_SECONDS", 0.1)
    command = ["sh", "-c", "test $RANK = 0 && exec sleep 600; exit 7"]
    result = loopback.run(Cluster(HOSTS), command, timeout=60, stdout=tmp_path)
    assert (result.failed_rank, result.timed_out) == (1, False)
    assert result.exit_codes == (-signal.SIGTERM, 7)


def test_overlong_ranks_are_killed_if_they_ignore_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "TERMINATION_SECONDS", 0.1)
    command = ["sh", "-c", 'trap "" TERM; while :; do sleep 600; done']
    result = loopback.run(Cluster(HOSTS), command, timeout=5, stdout=tmp_path)
    assert (result.failed_rank, result.timed_out) == (None, True)
    assert result.exit_codes == (-signal.SIGKILL, -signal.SIGKILL)


def test_ranks_that_end_with_the_timeout_are_in_time() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(60)
    assert loopback._wait([process], time.monotonic()) == (None, False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_a_run(tmp_path: Path, number: int) -> None:
    program = (
        "from pathlib import Path\n"
        "from hetcomm.demo import loopback\n"
        "from hetcomm.emulate import Cluster, Host, Nic\n"
        "cluster = Cluster((Host('north', 1, (Nic(),)),))\n"
        "command = ['sh', '-c', 'echo $$; exec sleep 600']\n"
        f"loopback.run(cluster, command, timeout=600, stdout=Path({str(tmp_path)!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", program])
    log = tmp_path / "rank-0.log"
    try:
        _until(lambda: log.exists() and log.read_text().endswith("\n"))
        process.send_signal(number)
        assert process.wait(30) == (128 + number if number == signal.SIGTERM else -number)
    finally:
        process.kill()
        process.wait()
    _until(lambda: not _runs(int(log.read_text())))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether the process has not ended. Some containers do not reap ended processes."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
