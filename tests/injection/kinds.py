"""The kinds of injections. Each breaks something, and judges the answers of the ranks."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import file_faults
import library_faults
import machine_faults
import network_faults
import rail_faults
import set_up_faults
from case import Case, Layout
from job import NOTICE, wait_for
from trial import CRASH, END, STEP, Complaint, Trial

SHORT = 5.0  # seconds; the timeout of a group that exceeds it

Settings = Mapping[int, Mapping[str, str]]


@dataclass(frozen=True)
class Kind:
    """summary: what is done to the victim. needs: abilities of tests/running/abilities.py. cluster:
    on emulated hosts. shared: harmless, so that cases share a job. joins: the ranks join before
    the injection. settings: of ranks."""

    summary: str
    inject: Callable[[Trial], None]
    needs: tuple[str, ...] = ()
    cluster: bool = False
    shared: bool = False
    joins: bool = True
    timeout: float = 60.0
    layout: Callable[[Case], Layout] | None = None
    settings: Callable[[Trial], Settings] | None = None


def killed(trial: Trial) -> None:
    trial.begin()
    trial.job[trial.victim].signal(signal.SIGKILL)
    trial.all_fail(trial.others, ("PeerFailedError",), [f"rank {trial.victim}"], NOTICE)
    trial.end(trial.others)


def several_killed(trial: Trial) -> None:
    size = len(trial.job.ranks)
    others = [rank for rank in range(size) if rank != trial.victim]
    ended = [trial.victim, *trial.chance.sample(others, trial.chance.randrange(1, size - 1))]
    pause = trial.chance.choice((0.0, 0.01, 0.05))
    trial.tell(f"ranks {ended}, {pause:g} s apart")
    trial.begin()
    for rank in ended:
        trial.job[rank].process.send_signal(signal.SIGKILL)
        time.sleep(pause)
    survivors = [trial.job[rank] for rank in range(size) if rank not in ended]
    trial.all_fail(survivors, ("PeerFailedError",), ["gone"], NOTICE, failed=ended)
    trial.end(survivors)


def killed_in_set_up(trial: Trial) -> None:
    stage = trial.chance.choice(("member", "named", "ready"))
    trial.tell(f"after {stage}")
    published = trial.folder / "first" / f"{stage}-{trial.victim}"
    wait_for(published.exists)
    time.sleep(0.02 * trial.chance.random())
    trial.job[trial.victim].signal(signal.SIGKILL)
    errors, number = ("PeerFailedError", "VendorError"), trial.victim
    # A native library knows only that one of its members is missing or has ended.
    members = [f"ranks {number}, ", f", {number}, ", f", {number} in one communicator"]
    words = [f"rank {number}", *members, "remote process exited"]
    trial.all_fail(trial.others, errors, words, 2 * NOTICE, again=False)
    trial.remove_orphans()
    trial.end(trial.others)


def stopped(trial: Trial) -> None:
    seconds = trial.chance.choice((0.02, 0.2, 1.0, 2.6))
    trial.tell(f"for {seconds:g} s")
    trial.begin()
    trial.job[trial.victim].signal(signal.SIGSTOP)
    time.sleep(seconds)
    trial.job[trial.victim].signal(signal.SIGCONT)
    trial.all_right()


def stopped_too_long(trial: Trial) -> None:
    victim = trial.job[trial.victim]
    trial.join("second", SHORT)
    trial.begin()
    victim.signal(signal.SIGSTOP)
    errors, named = ("TimeoutError",), f"rank {trial.victim}"
    trial.all_fail(trial.others, errors, [named], bound=SHORT + END)
    victim.signal(signal.SIGCONT)
    trial.fails_soon(victim, errors, [named, STEP])
    trial.end()


def delayed(trial: Trial) -> None:
    seconds = trial.chance.choice((0.02, 0.2, 1.0))
    trial.tell(f"by {seconds:g} s")
    trial.begin(trial.victim, seconds)
    trial.all_right()


def delayed_too_long(trial: Trial) -> None:
    trial.join("second", SHORT)
    trial.begin(trial.victim, SHORT + 3)
    errors, named = ("TimeoutError",), [f"rank {trial.victim} ", f"rank {trial.victim};"]
    trial.all_fail(trial.others, errors, named, bound=SHORT + END)
    trial.fails_soon(trial.job[trial.victim], errors, named)
    trial.end()


def aborted(trial: Trial) -> None:
    trial.begin_without_victim()
    trial.order(trial.job[trial.victim], "abort")
    trial.answer(trial.job[trial.victim])
    trial.all_fail(trial.others, ("AbortedError",), [f"rank {trial.victim} aborted"], NOTICE)
    trial.end()


def left(trial: Trial) -> None:
    victim = trial.job[trial.victim]
    trial.begin_without_victim()
    trial.order(victim, "exit")
    trial.answer(victim)
    trial.all_fail(trial.others, ("PeerFailedError",), [f"rank {trial.victim} has left"], NOTICE)
    trial.await_end([victim])
    trial.end(trial.others)
    code = trial.job.codes()[trial.victim]
    if code:
        raise Complaint(CRASH, f"the rank that left ended with {code}: {victim.log.read_text()}")


VENDORS, HOSTS = ("emulated vendors",), ("namespaces",)
KINDS = {
    "kill": Kind("SIGKILL amid calls", killed),
    "kill-several": Kind(
        "SIGKILL for several ranks at once", several_killed, layout=lambda case: case.larger()
    ),
    "kill-in-set-up": Kind("SIGKILL while ranks join", killed_in_set_up, joins=False),
    "stop": Kind("SIGSTOP and SIGCONT amid calls", stopped, shared=True),
    "stop-long": Kind("SIGSTOP until beyond the timeout", stopped_too_long),
    "delay": Kind("a late call", delayed, shared=True),
    "delay-long": Kind("a call later than the timeout", delayed_too_long),
    "abort": Kind("abort() amid calls of the others", aborted),
    "leave": Kind("the end of the program amid calls of the others", left),
    "strangers": Kind(
        "recorded bytes, garbled, truncated or replayed, for every listening port",
        machine_faults.strangers,
    ),
    "flood": Kind(
        "1,000 connections of strangers a second, also in set-up", machine_faults.flooded,
        settings=machine_faults.ucx_ports,
    ),
    "handover-flood": Kind(
        "another user's connections to abstract sockets while ranks join", set_up_faults.flooded,
        joins=False, timeout=20, settings=set_up_faults.flood,
    ),
    "store-stopped": Kind(
        "SIGSTOP for the server of the store while ranks join", set_up_faults.stopped,
        settings=set_up_faults.serve,
    ),
    "descriptors": Kind("no descriptors amid calls", machine_faults.few_descriptors, shared=True),
    "descriptors-in-set-up": Kind(
        "few descriptors from the beginning", machine_faults.joined_with_few_descriptors,
        joins=False, timeout=20, settings=machine_faults.spare_descriptors,
    ),
    "memory": Kind(
        "a full /dev/shm amid calls", machine_faults.full_memory, ("mount namespaces",)
    ),
    "memory-in-set-up": Kind(
        "a full /dev/shm from the beginning", machine_faults.joined_with_full_memory,
        ("mount namespaces",), joins=False, timeout=20, settings=machine_faults.fill_memory,
    ),
    "library": Kind(
        "an error or a hang of a native library", library_faults.broken, VENDORS, joins=False,
        timeout=10, layout=library_faults.layout, settings=library_faults.settings,
    ),
    "files-stand-still": Kind(
        "SIGKILL while a file system stands still", file_faults.standing_still, ("compiler",),
        settings=file_faults.settings,
    ),
    "kill-host": Kind("SIGKILL for all ranks of a host", network_faults.killed, HOSTS, True),
    "link-blink": Kind(
        "a link down and up", network_faults.interrupted, HOSTS, True, shared=True
    ),
    "link-lost": Kind("a link down, or without packets", network_faults.lost, HOSTS, True),
    "rate-cut": Kind("a rate cut to 1 %", network_faults.slowed, HOSTS, True, shared=True),
    "rail-lost": Kind(
        "a NIC beside faster ones down, or without packets", rail_faults.lost, HOSTS, True,
        layout=rail_faults.layout,
    ),
}  # fmt: skip
