"""One case under way: orders to the ranks, and the verdict on their answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from case import Case
from cluster_job import processes_of
from job import BOUND, Job, Process

from hetcomm import _core

FIRST = 10.0  # seconds until every rank has mostly submitted its first call
END = 30.0  # seconds for a rank to leave its groups and to end
QUIET = 20.0  # seconds in which the resources of an injection are gone
STEP = "waiting at step"  # in a timeout whose culprit the rank cannot see
SHARED_MEMORY = Path("/dev/shm")
WRONG, HANG, UNNAMED, LEAK, CRASH, ERROR = (
    "wrong result", "hang", "culprit not named", "leak", "crash", "unexpected error",
)  # fmt: skip


def out_of_reach(rank: int, failed: Sequence[int], hosts: str) -> list[int]:
    """The failed ranks, and the survivors that these cut off. Control connections join ranks 1, 2,
    4, ... places apart, host by host. hosts: of each rank, as in "aab"."""
    size = len(hosts)
    ring = sorted(range(size), key=lambda one: (hosts.index(hosts[one]), one))
    part, reached = {rank}, [rank]
    while reached:
        place, apart = ring.index(reached.pop()), 1
        while apart < size:
            neighbours = {ring[(place + apart) % size], ring[place - apart]}
            reached += neighbours - part - set(failed)
            part |= neighbours - set(failed)
            apart *= 2
    return sorted(set(range(size)) - part)


class Complaint(Exception):
    """What is wrong in a case: one of the words above, and the facts."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


Answer = dict[str, Any]


class Trial:
    """A case on its job. Methods raise a Complaint where the job does not do as it should."""

    job: Job
    server: subprocess.Popen[str]  # of the store, and its port, if a separate process serves it
    port: int

    def __init__(self, case: Case, hosts: str, folder: Path, private_memory: bool) -> None:
        self.case, self.hosts, self.size, self.folder = case, hosts, len(hosts), folder
        self.private_memory = private_memory
        self.chance = case.chance
        self.victim = self.chance.randrange(self.size)
        self.told: list[str] = []  # details for the line of the case
        self.amid: bool | None = None  # the injection came amid calls; None: it has no such moment
        self.cleanup = contextlib.ExitStack()
        self._calling = folder / "calling"  # calls go on while it exists
        self._injected: float | None = None  # time.monotonic(), until the calls are over

    @property
    def others(self) -> list[Process]:
        return self.job.others(self.victim)

    def tell(self, text: str) -> None:
        self.told.append(text)

    def begin(self, *more: float, calls: int = 0) -> None:
        """Starts random calls on every rank, and waits for the moment of the injection. The calls
        go on until finish(), or until an answer is awaited. more: `late`, `seconds` and `large` of
        random_work.py."""
        self._work(self.job.ranks, calls or self.case.calls, str(self._calling), *more)
        self._await_moment(self.job.ranks)

    def begin_without_victim(self) -> None:
        """Makes calls on every rank. Then starts more on the others, and waits for the moment."""
        self.work_alone()
        self._work(self.others, self.case.calls, str(self._calling))
        self._await_moment(self.others)

    def _await_moment(self, ranks: Sequence[Process]) -> None:
        """The moment counts from the first call. Moment 0 may come before this call."""
        until = time.monotonic() + FIRST
        while self.case.moment and not all(self._begun(rank).exists() for rank in ranks):
            if time.monotonic() > until or any(not rank.answers.empty() for rank in ranks):
                break
            time.sleep(0.001)
        time.sleep(self.case.moment)
        self._injected = time.monotonic()

    def _begun(self, rank: Process) -> Path:
        return self.folder / f"{self._calling.name}-{self.job.ranks.index(rank)}"

    def finish(self) -> None:
        """The ranks end their calls soon."""
        self._calling.unlink(missing_ok=True)

    def work_alone(self) -> None:
        """Makes random calls, without an injection."""
        self._work(self.job.ranks, self.case.calls)
        self.all_right()

    def _work(self, ranks: Sequence[Process], calls: int, file: str = "", *more: float) -> None:
        for rank in ranks:
            self.order(rank, "prepare")
        self.answers(ranks)
        self._calling.touch()
        for rank in ranks:
            self._begun(rank).unlink(missing_ok=True)
            self.order(rank, "work", self.case.work_seed, calls, file, *more)

    def join(self, name: str, timeout: float) -> None:
        """Later calls are those of a new group with this timeout."""
        for rank in self.job.ranks:
            self.order(rank, "use", name, timeout)
        self.all_right()

    def open_links(self) -> None:
        """Opens the links between every two ranks, with the sockets of UCX for long messages."""
        for rank in self.job.ranks:
            self.order(rank, "greet", 1 << 20)
        self.all_right()

    def order(self, rank: Process, method: str, *arguments: object) -> None:
        try:
            rank.tell(method, *arguments)
        except AssertionError as ended:
            raise Complaint(CRASH, f"{self.name(rank)}: {ended}") from None

    def name(self, rank: Process) -> str:
        return f"rank {self.job.ranks.index(rank)}"

    def answer(self, rank: Process, bound: float = BOUND) -> Answer:
        """A value or an error. A wrong result or no answer is a complaint."""
        self.finish()
        try:
            found = self._answer(rank, bound)
        except AssertionError as failed:
            kind = HANG if str(failed).startswith("no answer") else CRASH
            raise Complaint(kind, f"{self.name(rank)}: {failed}") from None
        except json.JSONDecodeError as failed:
            raise Complaint(ERROR, f"{self.name(rank)} printed {failed.doc!r}") from None
        if found.get("error") == "AssertionError":
            raise Complaint(WRONG, f"{self.name(rank)}: {found['text']}")
        return found

    def _answer(self, rank: Process, bound: float) -> Answer:
        """A native library without a descriptor for its log writes to standard output."""
        until = time.monotonic() + bound
        while True:
            try:
                return rank.answer(max(0.1, until - time.monotonic()))
            except json.JSONDecodeError as failed:
                if not re.search(" NCCL (INFO|WARN) ", failed.doc):
                    raise

    def answers(self, ranks: Iterable[Process], bound: float = BOUND) -> list[Answer]:
        until = time.monotonic() + bound
        return [self.answer(rank, max(0.1, until - time.monotonic())) for rank in ranks]

    def _look_at(self, found: Sequence[Answer]) -> None:
        """The first answers after an injection show whether it came amid calls."""
        if self._injected is None:
            return
        values = [each["value"] for each in found if "value" in each]
        pauses = [value["paused"] for value in values if value["paused"] is not None]
        at, self._injected = pauses[0] if pauses else self._injected, None
        self.amid = len(values) < len(found) or any(
            begin < at < end for value in values for begin, end in value["spans"]
        )

    def all_right(self, bound: float = BOUND) -> None:
        """Every rank's calls have the right results."""
        found = self.answers(self.job.ranks, bound)
        self._look_at(found)
        wrong = [f"rank {rank}: {each}" for rank, each in enumerate(found) if "value" not in each]
        if wrong:
            raise Complaint(ERROR, "; ".join(wrong))

    def all_fail(
        self,
        ranks: Sequence[Process],
        errors: Sequence[str],
        words: Sequence[str],
        bound: float = BOUND,
        again: bool = True,
        found: list[Answer] | None = None,
        failed: Sequence[int] = (),
    ) -> None:
        """Every one of the ranks has an error of these, now or at its next call. Each error has
        one of the words, and the failed ranks if there are some. again: another call has the same
        error. found: the answers so far."""
        found = self.answers(ranks, bound) if found is None else found
        self._look_at(found)
        for rank, first in zip(ranks, found, strict=True):
            if "value" in first:
                self.order(rank, "all_reduce", 16)
        found = [
            self.answer(rank, bound) if "value" in first else first
            for rank, first in zip(ranks, found, strict=True)
        ]
        for rank, first in zip(ranks, found, strict=True):
            self.expect(rank, first, errors, words)
            expected = out_of_reach(self.job.ranks.index(rank), failed, self.hosts)
            if failed and first["failed"] != expected:
                raise Complaint(UNNAMED, f"{self.name(rank)} expects failed {expected}: {first}")
        for rank, first in zip(ranks, found, strict=True) if again else ():
            self.order(rank, "all_reduce", 16)
            second = self.answer(rank, END)
            if second != first:
                raise Complaint(ERROR, f"{self.name(rank)} has {first}, and then {second}")

    def expect(
        self, rank: Process, found: Answer, errors: Sequence[str], words: Sequence[str]
    ) -> None:
        if found.get("error") not in errors:
            raise Complaint(ERROR, f"{self.name(rank)} expects one of {errors}: {found}")
        if not any(word in found["text"] for word in words):
            raise Complaint(UNNAMED, f"{self.name(rank)} expects one of {words}: {found}")

    def right_or_refused(
        self,
        errors: Sequence[str],
        words: Sequence[str],
        joining: bool = True,
        ending: bool = True,
        again: bool = True,
    ) -> None:
        """All calls have the right results, or all ranks have an error as all_fail() says.

        joining: the ranks join first, which may fail. ending: the ranks end afterwards.
        """
        ranks, joined = self.job.ranks, True
        found = self.answers(ranks)
        if joining:
            joined = all("value" in each for each in found)
            if joined:
                self._work(ranks, self.case.calls)
                found = self.answers(ranks)
        self._look_at(found)
        if not all("value" in each for each in found):
            self.tell("refused")
            self.all_fail(ranks, errors, words, again=again and joined, found=found)
        if ending:
            self.end()

    def fails_soon(self, rank: Process, errors: Sequence[str], words: Sequence[str]) -> None:
        """The rank has an error as all_fail() says. Data that others sent before they gave up may
        complete some calls."""
        for _ in range(4):
            found = self.answer(rank)
            if "error" in found:
                return self.expect(rank, found, errors, words)
            self.order(rank, "all_reduce", 16)
        raise Complaint(ERROR, f"{self.name(rank)} goes on in a failed group")

    def resources(self) -> list[dict[str, int]]:
        for rank in self.job.ranks:
            self.order(rank, "resources")
        return [dict(found["value"]) for found in self.answers(self.job.ranks)]

    def settle(self, before: Sequence[dict[str, int]]) -> None:
        """The ranks hold no more than before."""
        until = time.monotonic() + QUIET
        names = ("descriptors", "sockets", "maps of islands")
        while True:
            more = [
                f"rank {rank}: {had[name]} {name} before, {has[name]} after"
                for rank, (had, has) in enumerate(zip(before, self.resources(), strict=True))
                for name in names
                if has[name] > had[name]
            ]
            if not more:
                return
            if time.monotonic() > until:
                raise Complaint(LEAK, "; ".join(more))
            time.sleep(0.2)

    def end(self, ranks: Sequence[Process] | None = None) -> None:
        """The ranks, all by default, end in order. Then nothing of the job is left."""
        ranks = self.job.ranks if ranks is None else ranks
        for rank in ranks:
            self.order(rank, "exit")
        self.ended(ranks)

    def await_end(self, ranks: Sequence[Process]) -> None:
        """The processes of the ranks end."""
        until = time.monotonic() + END
        while late := [self.name(rank) for rank in ranks if rank.process.poll() is None]:
            if time.monotonic() > until:
                raise Complaint(HANG, f"{', '.join(late)} did not end within {END:g} s")
            time.sleep(0.005)

    def ended(self, ranks: Sequence[Process]) -> None:
        """The ranks have the order to end, and end well. Then nothing of the job is left."""
        self.answers(ranks, END)
        self.await_end(ranks)
        for rank in self.job.ranks:
            if rank not in ranks:
                rank.signal(signal.SIGKILL)
        codes = self.job.codes()
        for rank in ranks:
            log = rank.log.read_text(errors="replace")
            code = codes[self.job.ranks.index(rank)]
            if code != 0 or "Traceback" in log or "terminate called" in log:
                raise Complaint(CRASH, f"{self.name(rank)} ended with {code}: {log[-3000:]}")
        self._nothing_left()

    def remove_orphans(self) -> None:
        """A rank that starts later removes the sockets of killed ranks, which are old here."""
        if not self.private_memory:
            return
        for file in SHARED_MEMORY.glob("hetcomm-*"):
            with contextlib.suppress(FileNotFoundError):
                os.utime(file, (0, 0))
        _core.remove_shm_segment(_core.create_shm_segment(1, across_namespaces=True))

    def _nothing_left(self) -> None:
        until = time.monotonic() + END
        while found := self._left():
            if time.monotonic() > until:
                raise Complaint(LEAK, ", ".join(found))
            time.sleep(0.01)

    def _left(self) -> list[str]:
        """Processes of the job, and files in /dev/shm if nobody else uses it."""
        processes = processes_of(self.folder).items()
        found = [f"process {number}: {words}" for number, words in processes]
        if self.private_memory:
            found += [f"file {file}" for file in SHARED_MEMORY.iterdir()]
        return found
