"""Runs the ranks of a cluster as plain processes of this machine, without shaped links."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hetcomm.emulate import Cluster, Result, vendors
from hetcomm.emulate.job import Job
from hetcomm.emulate.kernel import die_with_parent
from hetcomm.emulate.launch import GRACE_SECONDS
from hetcomm.emulate.logs import new_log
from hetcomm.job_key import with_job_key
from hetcomm.processes import end
from hetcomm.rendezvous import free_port

POLL_SECONDS = 0.05
TERMINATION_SECONDS = 5.0  # between SIGTERM and SIGKILL


def run(cluster: Cluster, command: Sequence[str], *, timeout: float, stdout: Path) -> Result:
    """Runs `command` once per rank, like `hetcomm.emulate.run`; HETCOMM_HOST_ID makes the hosts.

    Ranks of a host share memory. Ranks of different hosts use the loopback interface only. All
    ranks end after `timeout` seconds, 15 s after the first rank fails, or with this process. The
    folder `stdout` gets rank-N.log. The result has no links, since no kernel counter belongs to one
    host.
    """
    vendors.check(cluster)
    stdout.mkdir(parents=True, exist_ok=True)
    environment = with_job_key(os.environ)
    job = Job(cluster, tuple(command), environment, free_port(), timeout, GRACE_SECONDS, None)
    processes: list[subprocess.Popen[bytes]] = []
    started = time.monotonic()
    # Without any NIC in sysfs, hetcomm takes the loopback.
    with tempfile.TemporaryDirectory(prefix="hetcomm-no-nics-") as sysfs, _ended_by_sigterm():
        (Path(sysfs) / "class/net").mkdir(parents=True)
        try:
            for rank in range(cluster.ranks):
                with open(new_log(stdout, rank), "wb") as log, _signals_delayed():
                    processes.append(
                        subprocess.Popen(
                            job.command,
                            env=_environment(job, rank, sysfs),
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            preexec_fn=die_with_parent,
                        )
                    )
            failed, timed_out = _wait(processes, started + timeout)
        finally:
            end(processes, TERMINATION_SECONDS)
    return Result(
        exit_codes=tuple(process.returncode for process in processes),
        hosts=tuple(cluster.hosts[place].name for place in cluster.placement),
        links=(),
        congestion="",
        notes=(),
        duration=time.monotonic() - started,
        failed_rank=failed,
        timed_out=timed_out,
    )


def _environment(job: Job, rank: int, sysfs: str) -> dict[str, str]:
    variables = job.environment_of(rank)
    host = variables.pop("HETCOMM_EMULATED_HOST")
    return variables | {
        "HETCOMM_HOST_ID": host,
        "HETCOMM_SYSFS_ROOT": sysfs,
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _wait(processes: list["subprocess.Popen[bytes]"], until: float) -> tuple[int | None, bool]:
    """The first rank to fail, and whether ranks still ran at the timeout."""
    failed: int | None = None
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return _first_failure(codes) if failed is None else failed, False
        if failed is None and (failed := _first_failure(codes)) is not None:
            until = min(until, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() >= until:
            return failed, failed is None
        time.sleep(POLL_SECONDS)


def _first_failure(codes: Sequence[int | None]) -> int | None:
    return next((rank for rank, code in enumerate(codes) if code), None)


@contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delays signals to the end of the block, when the new process is known."""
    held: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda number, _: held.append(number)) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in held:
            signal.raise_signal(number)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turns SIGTERM into SystemExit, so no rank outlives this process."""

    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
