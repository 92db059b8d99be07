"""Ranks with the imports of one process.

An import of torch takes some four seconds of processor time. With `preload` process 1 of the
cluster imports the modules once. The ranks are forks of that process, and run their program as
`__main__`.
"""

import builtins
import ctypes
import gc
import importlib
import os
import pickle
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NoReturn

from . import kernel
from .error import ClusterError
from .job import Job

_KEY = "preload"
_IMPORTED_BY_TORCH = {"hetcomm._autoload", "hetcomm._vendors"}  # they only register the backend
_THREAD_BOUND = 1.0  # seconds for a thread to end, after Python's part of it has ended

# What the imports left in this process, for the ranks.
descriptors: set[int] = set()
_variables: dict[str, str] = {}


def check(modules: Sequence[str], command: Sequence[str]) -> None:
    """Raises ClusterError if ranks of this command cannot be forks."""
    if not modules:
        return
    found, own = Path(shutil.which(command[0]) or ""), Path(sys.executable)
    same = found.resolve() == own.resolve() and found.parent.resolve() == own.parent.resolve()
    program = command[1:2] if command[1:2] != ("-m",) else command[2:3]
    if not same or not program or program[0].startswith("-"):
        expected = f"{own.name} FILE ..., or {own.name} -m MODULE ..., of {own}"
        remedy = "leave out Python's own options, or the preloaded modules"
        raise ClusterError(_KEY, expected, " ".join(command), remedy)


def import_modules(job: Job, front: socket.socket) -> None:
    """Imports the job's modules. Raises ClusterError if that fails."""
    if not job.preload:
        return
    # Libraries read such variables while they load. OpenBLAS then starts its threads at once.
    os.environ.clear()
    os.environ.update(job.environment_of(0) | {"OPENBLAS_NUM_THREADS": "1"})
    before, opened, known = dict(os.environ), kernel.open_descriptors(), set(sys.modules)
    with _ended_with_the_run(job, front):
        for name in job.preload:
            try:
                importlib.import_module(name)
            except BaseException as error:
                got = f"{type(error).__name__} ({error}) from {name}"
                raise ClusterError(
                    _KEY, "modules that can be imported", got, "leave it out"
                ) from error
    _expect_one_thread(job)
    own = {name for name in set(sys.modules) - known if name.partition(".")[0] == "hetcomm"}
    if own - _IMPORTED_BY_TORCH:
        remedy = "name other modules; ranks import hetcomm themselves"
        raise ClusterError(_KEY, "modules without hetcomm", " ".join(job.preload), remedy)
    descriptors.update(kernel.open_descriptors() - opened)
    _variables.update(set(os.environ.items()) - set(before.items()))
    gc.freeze()  # later collections do not write to memory that the ranks share


@contextmanager
def _ended_with_the_run(job: Job, front: socket.socket) -> Iterator[None]:
    """Ends this process if the imports outlast the job's timeout or the front process."""
    done, watched = socket.socketpair()

    def watch() -> None:
        ready, _, _ = select.select([front, watched], [], [], job.timeout)
        if watched in ready:
            return
        if front not in ready:
            expected, got = f"imports within {job.timeout:g} s", "unfinished ones"
            error = ClusterError(_KEY, expected, got, "raise the timeout")
            front.sendall(pickle.dumps(error))
        os._exit(1)  # an import may swallow exceptions, or never return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.close()
        thread.join()
        watched.close()


def _expect_one_thread(job: Job) -> None:
    """A fork has only the thread that calls it."""
    until = time.monotonic() + _THREAD_BOUND
    while (threads := len(os.listdir("/proc/self/task"))) > 1:
        if time.monotonic() > until:
            got = f"{threads - 1} after the import of {', '.join(job.preload)}"
            remedy = "leave such modules out, or set OMP_NUM_THREADS=1"
            raise ClusterError(_KEY, "modules that start no threads", got, remedy)
        time.sleep(0.001)


def fork(job: Job, rank: int, output: int) -> int:
    """Starts a rank whose output goes to this descriptor, and returns its process number.

    The rank's program runs on top of the supervisor's stack. The stack keeps the supervisor's
    sockets, whose numbers the rank may use again.
    """
    separate, separated = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(separated)
            _become(job, rank, output)
            _run(job.command[1:])
        except BaseException:  # of this module: _run() shows those of the program
            sys.excepthook(*sys.exc_info())
        os._exit(1)  # the supervisor's stack must not go on in a rank
    os.close(separated)
    os.read(separate, 1)  # returns at the end of file; signals to the rank's session now reach it
    os.close(separate)
    return pid


def _become(job: Job, rank: int, output: int) -> None:
    """Makes this process a rank: its signals, streams, variables, modules and random numbers."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for standard in (1, 2):
        os.dup2(output, standard)
    kernel.close_all_but({0, 1, 2, *descriptors})
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(job.environment_of(rank) | _variables)
    for name in list(sys.modules):  # the supervisor's hetcomm has not run its __init__
        if name.partition(".")[0] == "hetcomm":
            del sys.modules[name]
    # Otherwise all ranks would draw the same numbers.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _run(words: Sequence[str]) -> NoReturn:
    """Runs FILE or -m MODULE with its arguments, and ends this process, as Python does."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.orig_argv = [sys.executable, *words]
    code = 0
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            sys.path.insert(0, os.getcwd())
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        else:
            sys.argv = list(words)
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            main.__file__, main.__loader__ = words[0], SourceFileLoader("__main__", words[0])
            exec(_compiled(words[0]), main.__dict__)
    except SystemExit as end:
        code = _code_of(end)
    except BaseException as error:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        frames = error.__traceback__
        if frames is not None:  # its first frame is this function
            frames = frames.tb_next
        try:
            sys.excepthook(type(error), error.with_traceback(frames), frames)
        except SystemExit as end:
            code = _code_of(end)
    # Waits for threads, calls what atexit has, and clears modules, as at the end of any program.
    ctypes.pythonapi.Py_Exit(code)
    os._exit(code)  # for type checkers: Py_Exit() does not return


def _compiled(file: str) -> CodeType:
    try:
        source = Path(file).read_bytes()
    except OSError as error:
        print(f"{sys.executable}: can't open file {file!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    code: CodeType = compile(source, file, "exec")
    return code


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    with suppress(Exception):
        print(end.code, file=sys.stderr)
    return 1
