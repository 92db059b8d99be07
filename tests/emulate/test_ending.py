"""Every run ends with all its processes, and leaves nothing behind."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from emulated import PROGRAMS, RunProgram, two_hosts
from pyroute2 import IPRoute

from hetcomm.emulate import ClusterError, run
from hetcomm.emulate.job import Job
from hetcomm.emulate.supervisor import Supervisor

# Alone: these tests look at all namespaces and links of this machine.
pytestmark = [pytest.mark.needs("namespaces"), pytest.mark.alone]
NOBODY = -1


def test_a_failing_rank_ends_the_rest(run_program: RunProgram) -> None:
    result, lines = run_program(two_hosts(ranks=(2, 1)), "linger.py", 1, NOBODY, grace=0.2)
    assert not result.ok and not result.timed_out, lines
    assert result.failed_rank == 1
    assert result.exit_codes == (-signal.SIGTERM, 3, -signal.SIGTERM)
    assert "rank 1 on red0 exited with status 3" in result.verdict()


def test_a_rank_that_ignores_sigterm_is_killed(run_program: RunProgram) -> None:
    result, lines = run_program(two_hosts(), "linger.py", 0, 1, grace=0.2)
    assert result.exit_codes == (3, -signal.SIGKILL), lines


def test_a_timeout_ends_the_run(run_program: RunProgram) -> None:
    result, lines = run_program(two_hosts(), "linger.py", NOBODY, NOBODY, timeout=2)
    assert result.timed_out and not result.ok, lines
    assert result.failed_rank is None
    assert result.exit_codes == (-signal.SIGTERM, -signal.SIGTERM)


def test_ranks_that_end_with_the_timeout_are_in_time() -> None:
    front, theirs = socket.socketpair()
    with front, theirs:
        supervisor = Supervisor(Job(two_hosts(), ("true",), {}, 1, 60.0, 15.0, None), theirs)
        supervisor._terminate_at = time.monotonic()

        def end() -> None:
            supervisor._on_exit(0, 0)
            supervisor._on_exit(1, 0)

        front.send(b"x")
        supervisor._watch(theirs, end)
        supervisor._wait()
        assert not supervisor._timed_out


def test_stray_children_end_with_the_run(tmp_path: Path) -> None:
    """A daemon that outlives its rank would hold the log open for ever."""
    result = run(two_hosts(), ["sh", "-c", "setsid sleep 600 & echo $RANK"], stdout=tmp_path)
    assert result.ok
    assert [(tmp_path / f"rank-{rank}.log").read_text() for rank in (0, 1)] == ["0\n", "1\n"]
    assert not _processes_in(tmp_path)


def test_an_unknown_command_is_an_error() -> None:
    with pytest.raises(ClusterError, match="no-such-program"):
        run(two_hosts(), ["no-such-program"])


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_signal_to_the_command_leaves_no_process(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    links, mounts = _links(), Path("/proc/self/mountinfo").read_text()
    with _lingering_job(tmp_path) as front:
        tree = _descendants(front.pid)
        assert len(tree) >= 6  # supervisor, process 1, two hosts, two ranks
        network = {os.readlink(f"/proc/{pid}/ns/net") for pid in tree}
        assert len(network) >= 3  # the switch and two hosts
        watched = [os.pidfd_open(pid) for pid in tree]
        front.send_signal(number)
        assert front.wait(30) == status
        for descriptor in watched:
            assert select.select([descriptor], [], [], 10)[0], "a process of the job is left"
            os.close(descriptor)
    assert not network & _namespaces()
    assert not {name for name in _links() - links if name.startswith(("port", "switch"))}
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not Path("/dev/shm/.hetcomm-host").exists()


@contextmanager
def _lingering_job(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    cluster = directory / "cluster.toml"
    host = '[[host]]\nname = "{}"\nranks = 1\n[[host.nic]]\nrate = "1gbit"\n'
    cluster.write_text(host.format("red0") + host.format("blue0"))
    command = [sys.executable, "-m", "hetcomm", "emulate", str(cluster), "--timeout", "60", "--"]
    command += [sys.executable, str(PROGRAMS / "linger.py"), str(NOBODY), str(NOBODY)]
    # Background jobs of a shell ignore the interrupt, and so would the children of this test.
    signals = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **signals) as front:
        assert front.stdout is not None
        try:
            assert {front.stdout.readline() for _ in range(2)} == {
                "[0 red0] ready\n",
                "[1 blue0] ready\n",
            }
            yield front
        finally:
            front.kill()


def _descendants(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
    found, fresh = set(), {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


def _namespaces() -> set[str]:
    held = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                held.add(os.readlink(entry / "ns/net"))
            except OSError:  # ended meanwhile, or another user's
                continue
    return held


def _processes_in(directory: Path) -> list[int]:
    """Processes that hold a file of `directory` open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link).startswith(str(directory)):
                found.append(int(link.parts[2]))
        except OSError:
            continue
    return found


def _links() -> set[str]:
    with IPRoute() as routes:
        return {link.get_attr("IFLA_IFNAME") for link in routes.get_links()}
