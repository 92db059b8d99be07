"""Injections into the set-up of a group: other users of the host, and the store."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import handover_flood
from trial import HANG, Complaint, Trial

if TYPE_CHECKING:
    from kinds import Settings

EXCESS = 5.0  # seconds that a wait may last beyond its timeout
SHORT = 4.0  # seconds; the timeout of the group without a store

FLOOD = (str(Path(handover_flood.__file__)), "60")

SERVER = """
import sys
from hetcomm import TcpStoreServer
print(TcpStoreServer().port, flush=True)
sys.stdin.read()
"""


def start(trial: Trial, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    trial.cleanup.enter_context(process)
    trial.cleanup.callback(process.kill)
    return process


def flood(trial: Trial) -> Settings:
    count = trial.chance.choice((1, 4, 8))
    trial.tell(f"{count} processes")
    for _ in range(count):
        start(trial, *FLOOD)
    return {}


def flooded(trial: Trial) -> None:
    begin = time.monotonic()
    trial.right_or_refused(("TimeoutError", "PeerFailedError"), ("shared memory", "rank "))
    if "refused" in trial.told and time.monotonic() - begin > 20 + 3 * EXCESS:
        raise Complaint(HANG, f"set-up took {time.monotonic() - begin:.1f} s")


def serve(trial: Trial) -> Settings:
    """All ranks meet in the store of another process."""
    trial.server = start(trial, "-c", SERVER)
    assert trial.server.stdout is not None
    trial.port = int(trial.server.stdout.readline())
    return {rank: {"STORE_PORT": str(trial.port)} for rank in range(trial.size)}


def stopped(trial: Trial) -> None:
    """Ranks that have read all of the store join. Ranks without an answer name the store."""
    moment = trial.chance.choice((0.0, 0.001, 0.01, 0.02, 0.05, 0.2))
    trial.tell(f"after {moment:g} s")
    begin = time.monotonic()
    stopping = threading.Timer(moment, trial.server.send_signal, (signal.SIGSTOP,))
    stopping.start()
    for rank in trial.job.ranks:
        trial.order(rank, "use", "second", SHORT)
    found = trial.answers(trial.job.ranks, SHORT + 2 * EXCESS)
    took = time.monotonic() - begin
    stopping.join()
    failed = [each for each in found if "error" in each]
    if failed:
        trial.tell("refused")
        if took > SHORT + EXCESS:
            raise Complaint(HANG, f"a group with a timeout of {SHORT:g} s took {took:.1f} s")
        named = (f"the store at 127.0.0.1:{trial.port} does not answer", "rank ")
        errors = ("TimeoutError", "StoreTimeoutError", "PeerFailedError")
        for rank, each in zip(trial.job.ranks, found, strict=True):
            if "error" in each:
                trial.expect(rank, each, errors, named)
    trial.server.send_signal(signal.SIGCONT)
    if not failed:
        trial.work_alone()
    trial.end()
