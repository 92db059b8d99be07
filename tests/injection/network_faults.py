"""Injections into the network of an emulated host, and the end of a host."""

from __future__ import annotations

import signal
import time

from cluster_job import RATE, ClusterJob
from job import NOTICE
from trial import END, Trial

CALLS = 3  # of a case at 1 % of the rate


def on_the_host(trial: Trial) -> list[int]:
    """The ranks on the host of the victim."""
    assert isinstance(trial.job, ClusterJob)
    placement = trial.job.cluster.placement
    return [rank for rank, host in enumerate(placement) if host == placement[trial.victim]]


def killed(trial: Trial) -> None:
    ended = on_the_host(trial)
    trial.begin()
    for rank in ended:
        trial.job[rank].signal(signal.SIGKILL)
    survivors = [one for rank, one in enumerate(trial.job.ranks) if rank not in ended]
    trial.all_fail(survivors, ("PeerFailedError",), ["gone"], NOTICE, failed=ended)
    trial.end(survivors)


def interrupted(trial: Trial) -> None:
    """Far shorter than the two seconds after which a host counts as unreachable: TCP may wait as
    long again."""
    assert isinstance(trial.job, ClusterJob)
    change, back = trial.chance.choice((("down", "up"), ("swallow", "deliver")))
    seconds = trial.chance.choice((0.02, 0.1, 0.5))
    trial.tell(f"{change} for {seconds:g} s")
    network = trial.job.network(trial.victim)
    trial.begin()
    network.change(change, "eth0")
    time.sleep(seconds)
    network.change(back, "eth0")
    trial.all_right()


def lost(trial: Trial) -> None:
    """Ranks of other hosts name all ranks of this one."""
    assert isinstance(trial.job, ClusterJob)
    change = trial.chance.choice(("down", "swallow"))
    trial.tell(change)
    here = on_the_host(trial)
    network = trial.job.network(trial.victim)
    trial.begin()
    network.change(change, "eth0")
    elsewhere = [one for rank, one in enumerate(trial.job.ranks) if rank not in here]
    errors, bound = ("PeerFailedError",), NOTICE + END
    trial.all_fail(elsewhere, errors, ["unreachable"], bound, failed=here)
    for rank in here:
        trial.fails_soon(trial.job[rank], errors, ["unreachable"])
    trial.end()


def slowed(trial: Trial) -> None:
    assert isinstance(trial.job, ClusterJob)
    network = trial.job.network(trial.victim)
    trial.begin(calls=CALLS)
    network.change("rate", "eth0", RATE // 100)
    trial.all_right()
    network.change("rate", "eth0", RATE)
