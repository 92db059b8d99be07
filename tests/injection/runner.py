"""Runs cases, and judges each of them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import abilities
import hostile
from case import SHARED, Case, Layout
from cluster_job import ClusterJob
from job import Job
from kinds import KINDS, Kind, Settings
from trial import ERROR, Complaint, Trial


@dataclass
class Outcome:
    """failure: "" if the case is good."""

    seed: int
    number: int
    kind: str
    layout: str = ""
    victim: int = -1
    moment: float = 0.0
    calls: int = 0
    details: list[str] = field(default_factory=list)
    amid: bool | None = None  # the injection came amid calls; None: it has no such moment
    seconds: float = 0.0
    failure: str = ""

    @contextmanager
    def judged(self, where: str = "") -> Iterator[None]:
        """What is wrong becomes the failure of the case, whether the job or its processes fail."""
        try:
            yield
        except Complaint as complaint:
            self.failure = f"{where}{complaint}"
        except (AssertionError, OSError, subprocess.TimeoutExpired) as failed:
            self.failure = f"{where}{ERROR}: {failed or repr(failed)}"

    def line(self) -> str:
        what = f"{self.layout}, rank {self.victim} after {self.moment:g} s of {self.calls} calls"
        what += ", between calls" if self.amid is False else ""
        details = "".join(f", {detail}" for detail in self.details)
        verdict = f"FAILED: {self.failure}" if self.failure else "ok"
        place = f"--seed {self.seed} --first {self.number} --count 1"
        return f"{place}  {self.kind}: {what}{details}: {self.seconds:.1f} s, {verdict}"


@dataclass
class Shared:
    """A job of several cases. last: what became of its newest case."""

    key: tuple[int, int]
    job: Job
    folder: Path
    last: tuple[Case, Outcome]


class Runner:
    """Harmless cases share a job until one of them fails: one of them on this machine, and one on
    an emulated cluster."""

    def __init__(self, folder: Path, private_memory: bool) -> None:
        self.folder, self.private_memory = folder, private_memory
        self.vendors = not abilities.lacking("emulated vendors")
        self._shared: dict[bool, Shared] = {}  # by Kind.cluster

    def run(self, seed: int, number: int, name: str) -> Outcome:
        case, kind = Case(seed, number, name, self.vendors), KINDS[name]
        outcome = Outcome(seed, number, name, moment=case.moment, calls=case.calls)
        begin = time.monotonic()
        with outcome.judged():
            (self._share if kind.shared else self._alone)(case, kind, outcome)
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _alone(self, case: Case, kind: Kind, outcome: Outcome) -> None:
        layout = kind.layout(case) if kind.layout else case.layout(False, kind.cluster)
        with tempfile.TemporaryDirectory(dir=self.folder) as name, ExitStack() as stack:
            trial = self._trial(case, Path(name), layout, outcome)
            stack.enter_context(trial.cleanup)
            more = kind.settings(trial) if kind.settings else {}
            outcome.victim = trial.victim
            trial.job = stack.enter_context(start(Path(name), layout, kind, more))
            inject(kind, trial, outcome)

    def _share(self, case: Case, kind: Kind, outcome: Outcome) -> None:
        layout, key = case.layout(True, kind.cluster), (case.seed, case.number // SHARED)
        if kind.cluster in self._shared and self._shared[kind.cluster].key != key:
            self.close(kind.cluster)
        if kind.cluster not in self._shared:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            with ExitStack() as stack:
                job = stack.enter_context(start(folder, layout, kind, {}))
                job.do("greet", 1 << 20)  # opens all links, and sockets of UCX for long messages
                job.do("work", 1, 8)  # imports what calls need, before there are no descriptors
                stack.pop_all()
            self._shared[kind.cluster] = Shared(key, job, folder, (case, outcome))
        shared = self._shared[kind.cluster]
        trial = self._trial(case, shared.folder, layout, outcome)
        trial.job, shared.last = shared.job, (case, outcome)
        try:
            before = trial.resources()
            inject(kind, trial, outcome)
            trial.settle(before)
        except BaseException:
            del self._shared[kind.cluster]
            shared.job.__exit__()
            raise

    def _trial(self, case: Case, folder: Path, layout: Layout, outcome: Outcome) -> Trial:
        trial = Trial(case, layout.hosts, folder, self.private_memory)
        outcome.layout, outcome.victim, outcome.details = str(layout), trial.victim, trial.told
        return trial

    def close(self, cluster: bool) -> None:
        """Ends a shared job. What is wrong then is the failure of its last case."""
        shared = self._shared.pop(cluster, None)
        if shared is None:
            return
        case, outcome = shared.last
        with outcome.judged("at the end of the job: "):
            try:
                hosts = case.layout(True, cluster).hosts
                trial = Trial(case, hosts, shared.folder, private_memory=False)
                trial.job = shared.job
                trial.end()
            finally:
                shared.job.__exit__()


def inject(kind: Kind, trial: Trial, outcome: Outcome) -> None:
    try:
        kind.inject(trial)
    finally:
        outcome.amid = trial.amid


def start(folder: Path, layout: Layout, kind: Kind, more: Settings) -> Job:
    # The group's timeout ends a wait for a device before the emulated runtime does.
    bound = f",bound:{round(2 * kind.timeout)}"
    mixture = hostile.mixture(layout.hostile) + bound if layout.hostile else ""
    variable = {hostile.VARIABLE: mixture, "TOGETHER": "1"}
    if kind.cluster:
        if kind.shared:  # interrupts links for less, also on a slow machine
            variable["HETCOMM_PEER_TIMEOUT"] = "20"
        return ClusterJob(folder, layout.hosts, layout.vendors, variable, kind.timeout, layout.nics)
    settings = {rank: variable | dict(more.get(rank, {})) for rank in range(layout.size)}
    return Job(
        folder, layout.hosts, timeout=kind.timeout, vendors=layout.vendors, settings=settings,
        joins=kind.joins,
    )  # fmt: skip
