"""Runs one function as every rank of a job. Each rank is a process of its own.

The processes are forked from the server of forked.py, so that a rank starts in milliseconds. No
rank shares anything of hetcomm with another: its engine is made after the fork.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import itertools
import os
import re
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import forked

_context = forked.context()


@dataclass
class Outcome:
    """The result of one rank: the function's value, or the error that ended it."""

    rank: int
    value: Any = None
    error: list[str] = field(default_factory=list)  # names of the exception's type and its bases
    text: str = ""
    trace: str = ""
    exit_code: int | None = None

    def describe(self) -> str:
        if self.error:
            return f"rank {self.rank} raised {self.error[0]}: {self.text}\n{self.trace}"
        return f"rank {self.rank} returned, exit code {self.exit_code}"


@dataclass(frozen=True)
class Job:
    """The ranks' hosts by name (one memory system each), bounds in seconds, a folder, what each
    rank's environment has beyond this process's, and what it does before there is a group, which
    is bound to the device that this returns, if any."""

    hosts: Sequence[str]
    folder: Path
    bound: float = 240.0
    group_timeout: float = 60.0
    backend: str = "hetcomm"
    environments: Sequence[Mapping[str, str]] = ()
    prepare: Callable[[], Any] | None = None
    may_die: Sequence[int] = ()  # these ranks need not exit with 0


def jobs(folder: Path) -> Callable[..., Job]:
    """Makes a Job from one letter per rank: ranks with the same letter share a host."""
    made = itertools.count(1)

    def make(hosts: str, **settings: Any) -> Job:
        own = folder / f"job{next(made)}"
        own.mkdir()
        names = [f"{os.getpid()}-{folder.name}-{host}" for host in hosts]
        return Job(hosts=names, folder=own, **settings)

    return make


class JobFailed(AssertionError):
    """A rank raised, died or had to be ended."""


def _log(job: Job, rank: int) -> Path:
    return job.folder / f"rank{rank}.log"


def _main(
    job: Job, rank: int, function: Callable[..., Any], arguments: tuple, to: Connection
) -> None:
    log = os.open(_log(job, rank), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    gc.freeze()  # imports of the server live as long as the process
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False  # torch takes 0.04 s to unload its operators
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(job.bound - 3, 1))
    os.environ["HETCOMM_HOST_ID"] = job.hosts[rank]
    if job.environments:
        os.environ.update(job.environments[rank])
    import torch
    import torch.distributed as dist

    import hetcomm  # noqa: F401

    torch.set_num_threads(1)
    outcome = Outcome(rank)
    try:
        device = job.prepare() if job.prepare is not None else None
        store = dist.FileStore(str(job.folder / "store"), len(job.hosts))
        dist.init_process_group(
            job.backend,
            store=store,
            rank=rank,
            world_size=len(job.hosts),
            timeout=timedelta(seconds=job.group_timeout),
            device_id=device,
        )
        outcome.value = function(rank, len(job.hosts), *arguments)
    except BaseException as error:
        outcome.error = [kind.__name__ for kind in type(error).__mro__]
        outcome.text = str(error)
        outcome.trace = traceback.format_exc()
    try:
        to.send(outcome)
        if dist.is_initialized():
            dist.destroy_process_group()
    finally:
        atexit._run_exitfuncs()  # multiprocessing skips exit handlers; a user's process runs them


def launch(job: Job, function: Callable[..., Any], *arguments: Any) -> list[Outcome]:
    """Runs function(rank, size, *arguments) as every rank, with the default group set up.

    Returns every rank's outcome. Raises JobFailed if a rank has not reported within the bound (it
    is ended then; the text has every rank's log with its stack) or exits other than with 0.
    """
    processes, pipes = [], {}
    for rank in range(len(job.hosts)):
        receiving, sending = _context.Pipe(duplex=False)
        process = _context.Process(
            target=_main, args=(job, rank, function, arguments, sending), daemon=True
        )
        process.start()
        sending.close()
        processes.append(process)
        pipes[receiving] = rank
    outcomes: dict[int, Outcome] = {}
    end = time.monotonic() + job.bound
    while pipes and time.monotonic() < end:
        for pipe in wait(list(pipes), timeout=max(end - time.monotonic(), 0)):
            rank = pipes.pop(pipe)
            try:
                outcomes[rank] = pipe.recv()
            except EOFError:
                outcomes[rank] = Outcome(rank, error=["Died"], text="the process ended silently")
    troubles = [f"rank {rank} did not report in {job.bound} s" for rank in pipes.values()]
    for rank, process in enumerate(processes):
        process.join(max(end - time.monotonic(), 0) + 5)
        if process.is_alive():
            troubles.append(f"rank {rank} did not exit; ended")
            process.kill()
            process.join()
        elif process.exitcode != 0 and rank not in job.may_die:
            troubles.append(f"rank {rank} exited with {process.exitcode}")
        if rank in outcomes:
            outcomes[rank].exit_code = process.exitcode
    if troubles:
        raise JobFailed("\n".join([*troubles, *map(Outcome.describe, outcomes.values()),
                                   *logs(job)]))  # fmt: skip
    return [outcomes[rank] for rank in range(len(job.hosts))]


def logs(job: Job) -> list[str]:
    """The logs of all ranks, the last 4000 characters of each."""
    texts = []
    for rank in range(len(job.hosts)):
        written = _log(job, rank).read_text(errors="replace") if _log(job, rank).exists() else ""
        if written.strip():
            texts.append(f"--- log of rank {rank}\n{written[-4000:]}")
    return texts


def values(job: Job, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The values of launch() by rank, for jobs in which no rank may raise."""
    outcomes = launch(job, function, *arguments)
    if any(outcome.error for outcome in outcomes):
        raise JobFailed("\n".join([*(o.describe() for o in outcomes if o.error), *logs(job)]))
    return [outcome.value for outcome in outcomes]


def refusal(call: Callable[[], object]) -> str:
    """The text of the InvalidArgumentError that the call raises; "no error" without one."""
    from hetcomm import InvalidArgumentError

    try:
        call()
    except InvalidArgumentError as error:
        return str(error)
    return "no error"


def check_texts(outcomes: Sequence[Sequence[str]], expected: Sequence[str]) -> None:
    """Asserts that every rank's texts match the expected patterns, one by one."""
    for found in outcomes:
        assert len(found) == len(expected)
        for text, pattern in zip(found, expected, strict=True):
            assert re.search(pattern, text), text
