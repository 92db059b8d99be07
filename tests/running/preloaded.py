"""Python programs in processes that have imported torch.

A process computes for some two seconds to import torch. Each process of the tests has one server
that has imported torch, and forks such processes. A forked process runs its program as `__main__`,
and its interpreter ends as usual. All such processes have one hash seed and one address layout.

`Preloaded` is one such process. `stand_in()` is a command in place of sys.executable, for a
launcher that starts processes by itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

IMPORTED = [
    "numpy",
    "torch",
    "torch._dynamo",  # torch.optim imports it at its first step
    "torch.distributed.optim",  # compiles its optimizers
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "rich.console",
    "typer",
]
MOST_BYTES = 1 << 17  # of a request
START_BOUND = 240.0  # seconds for the server to import and fork
CLIENT = Path(__file__).with_name("stand_in.py")


class Preloaded:
    """A process with the methods of subprocess.Popen that tests use. Standard input and output are
    pipes of text."""

    def __init__(
        self,
        program: str | Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stderr: IO[Any],
    ) -> None:
        self._answers = _server().connect()
        self._reading = threading.Lock()
        self._code: int | None = None
        input_, output = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(input_[1], "w"), os.fdopen(output[0])
        request = [[str(program), *arguments], dict(environment), os.getcwd()]
        try:
            files = [input_[0], output[1], stderr.fileno()]
            socket.send_fds(self._answers, [json.dumps(request).encode()], files)
            pid = self._answer(START_BOUND)
        finally:
            os.close(input_[0])
            os.close(output[1])
        if pid is None:
            raise TimeoutError(f"the server started no process within {START_BOUND} s")
        self.pid = pid

    def _answer(self, timeout: float | None) -> int | None:
        """The next answer of the server; None after the timeout."""
        if not select.select([self._answers], [], [], timeout)[0]:
            return None
        if answer := self._answers.recv(100):
            return int(answer)
        raise RuntimeError("the server of processes has ended")

    def poll(self) -> int | None:
        return self.returncode

    @property
    def returncode(self) -> int | None:
        with self._reading:
            if self._code is None:
                self._code = self._answer(0.0)
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        select.select([self._answers], [], [], timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its code is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The server's process, which ends with this one, and the folder of its socket."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hetcomm-preloaded-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._front, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self.folder / "server"))
            listener.listen(64)
            descriptors = [theirs.fileno(), listener.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, *map(str, descriptors)],
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
            )

    def connect(self) -> socket.socket:
        answers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers.connect(str(self.folder / "server"))
        return answers


@cache
def _server() -> _Server:
    return _Server()


def stand_in() -> str:
    """A command like sys.executable for `[-P] [-u] FILE|-m MODULE ...`. Its processes end with it.

    The forks have the command's folder, environment and files; not its limits, user or namespaces.
    """
    command = _server().folder / "python"
    if not command.exists():
        words = f'"{sys.executable}" -IS "{CLIENT}" "{command.parent}"'
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o755)
    return str(command)


def serve(front: int, listener: socket.socket) -> list[Any] | None:
    """Forks a process for each request until the tests' process ends. Returns the request in the
    process, and None in the server. A process ends with the connection of its request."""
    processes: dict[int, tuple[int, socket.socket]] = {}  # by descriptor: number and connection
    clients: dict[int, int] = {}  # by the connection's descriptor: that of its process
    with selectors.DefaultSelector() as ready:
        ready.register(front, selectors.EVENT_READ)
        ready.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if ready.get_map().get(key.fd) is not key:
                    continue  # closed by the event before, and perhaps open anew
                if key.fd == front:
                    return None
                if key.fd in clients:
                    signal.pidfd_send_signal(clients.pop(key.fd), signal.SIGKILL)
                    ready.unregister(key.fd)
                elif key.fd in processes:
                    pid, answers = processes.pop(key.fd)
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    if clients.pop(answers.fileno(), None) is not None:
                        ready.unregister(answers)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with answers, suppress(OSError):
                        answers.send(str(code).encode())
                elif key.fd == listener.fileno():
                    answers = listener.accept()[0]
                    told, files, _, _ = socket.recv_fds(answers, MOST_BYTES, 3)
                    if not told:  # the client has ended
                        answers.close()
                        continue
                    pid = os.fork()
                    if pid == 0:
                        for descriptor, file in enumerate(files):
                            os.dup2(file, descriptor)
                        others = [connection.detach() for _, connection in processes.values()]
                        own = [front, listener.detach(), answers.detach()]
                        for open_ in [*files, *processes, *others, *own]:
                            os.close(open_)
                        request: list[Any] = json.loads(told)
                        return request
                    for file in files:
                        os.close(file)
                    process = os.pidfd_open(pid)
                    processes[process] = pid, answers
                    clients[answers.fileno()] = process
                    ready.register(process, selectors.EVENT_READ)
                    ready.register(answers, selectors.EVENT_READ)
                    answers.send(str(pid).encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    front, listener = map(int, sys.argv[1:])
    request = serve(front, socket.socket(fileno=listener))
    if request is None:
        return
    words, environment, folder = request
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # The descriptors stay open until the process ends, as in any other process.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    run(words)


def run(words: list[str]) -> None:
    """Does what the interpreter does with its arguments."""
    is_safe, is_module = bool(os.environ.get("PYTHONSAFEPATH")), False
    while words[0].startswith("-") and not is_module:
        option = words.pop(0)
        is_safe |= option == "-P"
        is_module = option == "-m"
        if option not in ("-P", "-u", "-m"):
            raise ValueError(f"expected -P, -u, -m or a file, got {option}; take sys.executable")
    program, *_ = sys.argv = words
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    if is_module:
        sys.path[:0] = [] if is_safe else [os.getcwd()]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [] if is_safe else [str(Path(program).resolve().parent)]
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
