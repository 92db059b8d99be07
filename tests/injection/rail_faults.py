"""A NIC that fails beside others, on emulated hosts with two or three of them."""

from __future__ import annotations

import dataclasses
import random
import re
import time

from case import Case, Layout
from cluster_job import FASTEST, ClusterJob
from job import NOTICE
from trial import UNNAMED, Complaint, Trial

# Seconds until the warning of a lost rail, and from there to right results. The kernel ends the
# connections of a rail 6 s after its last sign of life.
NOTICED, RECOVERED = 6.0 + 3 * NOTICE, 6.0 + 3 * NOTICE
LARGE = 0.4  # share of calls that are a large sum, which the NICs divide
WARNING = re.compile(
    r"(eth\d) \(([\d.]+)\) of host (\w+) does not reach (eth\d) \(([\d.]+)\) of host (\w+) any more"
)
Nic = tuple[int, int]  # host, and number of the NIC
Rail = frozenset[Nic]


def layout(case: Case) -> Layout:
    drawn = case.layout(shared=False, cluster=True)
    chance = random.Random(f"{case.seed}/{case.number}/rails")
    nics = "".join(chance.choice("23") for _ in set(drawn.hosts))
    return dataclasses.replace(drawn, nics=nics)


class Breaker:
    """Breaks NICs that are not the fastest. rails: what is lost so far."""

    def __init__(self, trial: Trial) -> None:
        assert isinstance(trial.job, ClusterJob)
        self.trial, self.job = trial, trial.job
        self.hosts, placement = self.job.cluster.hosts, self.job.cluster.placement
        self.address = self.job.cluster.address
        self.networks = [self.job.network(placement.index(h)) for h in range(len(self.hosts))]
        self.victim = placement[trial.victim]
        self.rails: set[Rail] = set()

    def rails_of(self, nic: Nic) -> set[Rail]:
        host, number = nic
        others = (h for h, other in enumerate(self.hosts) if number < len(other.nics) and h != host)
        return {frozenset((nic, (other, number))) for other in others}

    def nics(self) -> list[Nic]:
        """Those with a rail that is not yet lost."""
        every = ((h, n) for h, host in enumerate(self.hosts) for n in range(len(host.nics)))
        slower = (nic for nic in every if f"eth{nic[1]}" != FASTEST)
        return [nic for nic in slower if self.rails_of(nic) - self.rails]

    def break_one(self, nics: list[Nic]) -> None:
        chance, (host, number) = self.trial.chance, self.trial.chance.choice(nics)
        change, rails = chance.choice(("down", "swallow")), self.rails_of((host, number))
        interface, only = f"eth{number}", []
        if change == "swallow" and chance.random() < 0.5:
            rails = {chance.choice(sorted(rails - self.rails, key=sorted))}
            only = [self.address(h, number) for rail in rails for h, _ in rail if h != host]
        self.trial.tell(" ".join((change, interface, "of", self.hosts[host].name, *only)))
        self.networks[host].change(change, interface, *only)
        self.rails |= rails

    def warned(self) -> set[Rail]:
        """The rails of rank 0's warnings, which name both ends."""
        log, found = self.job[0].log.read_text(errors="replace"), set()
        numbers = {host.name: number for number, host in enumerate(self.hosts)}
        for match in WARNING.finditer(log):
            ends = [match.groups()[:3], match.groups()[3:]]
            nics = [(numbers[host], int(interface[3:])) for interface, _, host in ends]
            if [self.address(*nic) for nic in nics] != [end[1] for end in ends]:
                raise Complaint(UNNAMED, f"addresses of other NICs: {match[0]}")
            found.add(frozenset(nics))
        if found - self.rails:
            raise Complaint(UNNAMED, f"a warning of a rail that is not lost: {log}")
        return found

    def await_warnings(self) -> None:
        """Of all lost rails; or the early end of the calls, which has an error."""
        until = time.monotonic() + NOTICED
        while missing := self.rails - self.warned():
            if any(not rank.answers.empty() for rank in self.job.ranks):
                return
            if time.monotonic() > until:
                missed = sorted(map(sorted, missing))
                raise Complaint(UNNAMED, f"no warning of {missed} within {NOTICED:g} s")
            time.sleep(0.05)


def lost(trial: Trial) -> None:
    """The results are right on all ranks, and the warnings name both ends of each lost rail."""
    breaker, chance = Breaker(trial), trial.chance
    leaving = chance.random() < 0.4
    trial.begin(-1, 0.0, LARGE)
    breaker.break_one([nic for nic in breaker.nics() if nic[0] == breaker.victim])
    if leaving:
        return leave(trial, breaker)
    if chance.random() < 0.25:
        breaker.await_warnings()
    if (more := breaker.nics()) and chance.random() < 0.5:
        breaker.break_one(more)
    breaker.await_warnings()
    trial.all_right(RECOVERED)
    breaker.warned()
    trial.end()


def leave(trial: Trial, breaker: Breaker) -> None:
    """Each rank ends right after its last call, mostly before anyone has noticed."""
    trial.tell("then the end")
    for rank in trial.job.ranks:
        trial.order(rank, "exit")
    time.sleep(trial.chance.choice((0.0, 0.1, 1.0)))
    trial.all_right(RECOVERED)
    trial.ended(trial.job.ranks)
    breaker.warned()
