"""Ranks with the imports of one process.

A rank computes for some four seconds to import torch. With `preload` process 1 of the cluster
imports the modules once. The ranks are forks of that process, and run their program as `__main__`.
"""

import atexit
import gc
import importlib
import os
import runpy
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from . import kernel
from .error import ClusterError
from .job import Job

_KEY = "preload"
_NOT_THE_PROGRAM = {__file__, "<frozen runpy>"}  # files, in tracebacks


def check(modules: Sequence[str], command: Sequence[str]) -> None:
    """Raises ClusterError if ranks of this command cannot be forks."""
    if not modules:
        return
    found, own = Path(shutil.which(command[0]) or ""), Path(sys.executable)
    same = found.resolve() == own.resolve() and found.parent.resolve() == own.parent.resolve()
    program = command[1:2] if command[1:2] != ("-m",) else command[2:3]
    if not same or not program or program[0].startswith("-"):
        expected = f"a command {own.name} FILE ..., or {own.name} -m MODULE ..., of {own}"
        raise ClusterError(_KEY, expected, " ".join(command), "leave out the preloaded modules")
    if any(name.partition(".")[0] == "hetcomm" for name in modules):
        remedy = "name other modules; ranks import hetcomm themselves"
        raise ClusterError(_KEY, "modules other than hetcomm's", " ".join(modules), remedy)


def import_modules(job: Job) -> None:
    """Imports the job's modules. Raises ClusterError if that fails or takes longer than the job."""
    if not job.preload:
        return
    os.environ.clear()
    os.environ.update(job.environment_of(0))  # libraries read OMP_NUM_THREADS while they load
    for name in job.preload:
        with _bounded(job.timeout, name):
            try:
                importlib.import_module(name)
            except ClusterError:  # of _bounded()
                raise
            except Exception as error:
                what = f"{type(error).__name__} ({error}) from {name}"
                raise ClusterError(
                    _KEY, "modules that can be imported", what, "leave it out"
                ) from error
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:  # a fork has only one of them
        got = f"{threads - 1} after the import of {', '.join(job.preload)}"
        raise ClusterError(_KEY, "modules that start no threads", got, "leave such modules out")
    gc.freeze()  # later collections do not write to memory that the ranks share


@contextmanager
def _bounded(seconds: float | None, name: str) -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise ClusterError(
            _KEY, f"imports within {seconds:g} s", f"{name} unfinished", "raise the timeout"
        )

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fork(job: Job, rank: int, output: int) -> int:
    """Starts a rank whose output goes to this descriptor, and returns its process number.

    The rank runs in the stack of its parent, so objects of the parent live as long as the rank.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _separate(job, rank, output)
            code = _run(job.command[1:])
        finally:
            kernel.end_process(code)
    return pid


def _separate(job: Job, rank: int, output: int) -> None:
    """Removes what only the parent needs."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for standard in (1, 2):
        os.dup2(output, standard)
    kernel.close_all_but({0, 1, 2})
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(job.environment_of(rank))
    for name in list(sys.modules):  # the supervisor's hetcomm has not run its __init__
        if name.partition(".")[0] == "hetcomm":
            del sys.modules[name]
    if "numpy" in sys.modules:  # otherwise all ranks would draw the same numbers
        sys.modules["numpy"].random.seed()


def _run(words: Sequence[str]) -> int:
    """Runs FILE or -m MODULE with its arguments, as Python does. Returns the exit code."""
    code = 0
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            sys.path.insert(0, os.getcwd())
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in _NOT_THE_PROGRAM:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as every interpreter
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code
