"""Python programs in processes that have imported torch.

A process computes for some two seconds to import torch. Each process of the tests has one server
that has imported torch, and forks such processes. A forked process runs its program as `__main__`,
and its interpreter ends as usual. All such processes have one hash seed and one address layout.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
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
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "rich.console",
    "typer",
]
MOST_BYTES = 1 << 17  # of a request
START_BOUND = 240.0  # seconds for the server to import and fork


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
        self._server = _server()
        input_, output = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(input_[1], "w"), os.fdopen(output[0])
        request = [str(program), list(arguments), dict(environment), os.getcwd()]
        try:
            files = [input_[0], output[1], stderr.fileno()]
            self._number, self.pid = self._server.start(request, files)
        finally:
            os.close(input_[0])
            os.close(output[1])

    def poll(self) -> int | None:
        return self.returncode

    @property
    def returncode(self) -> int | None:
        return self._server.code(self._number)

    def wait(self, timeout: float | None = None) -> int:
        code = self._server.wait(self._number, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its code is on the way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The server's process, and what the server tells: the process number of each request, later
    its exit code."""

    def __init__(self) -> None:
        self._front, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._started: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while told := self._front.recv(1000):
            kind, number, value = json.loads(told)
            with self._changed:
                (self._started if kind == "started" else self._codes)[number] = value
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait_for(self, found: Mapping[int, int], number: int, timeout: float | None) -> int | None:
        """Under the lock."""
        self._changed.wait_for(lambda: number in found or self._ended, timeout)
        if number not in found and self._ended:
            raise RuntimeError(f"the server of processes has ended: {self._process.wait(60)}")
        return found.get(number)

    def start(self, request: Sequence[Any], files: Sequence[int]) -> tuple[int, int]:
        with self._changed:
            number = next(self._numbers)
            socket.send_fds(self._front, [json.dumps([number, *request]).encode()], files)
            pid = self._wait_for(self._started, number, START_BOUND)
            if pid is None:
                raise TimeoutError(f"the server started no process within {START_BOUND} s")
            return number, pid

    def code(self, number: int) -> int | None:
        with self._changed:
            return self._codes.get(number)

    def wait(self, number: int, timeout: float | None) -> int | None:
        with self._changed:
            return self._wait_for(self._codes, number, timeout)


@cache
def _server() -> _Server:
    return _Server()


def serve(front: socket.socket) -> list[Any] | None:
    """Forks a process for each request until the client ends. Returns the request in the process,
    and None in the server."""
    running: dict[int, tuple[int, int]] = {}  # by descriptor: the numbers of request and process
    with selectors.DefaultSelector() as ready:
        ready.register(front, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fd in running:
                    number, pid = running.pop(key.fd)
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    front.send(json.dumps(["ended", number, code]).encode())
                    continue
                told, files, _, _ = socket.recv_fds(front, MOST_BYTES, 3)
                if not told:
                    return None
                number, *request = json.loads(told)
                pid = os.fork()
                if pid == 0:
                    for descriptor, file in enumerate(files):
                        os.dup2(file, descriptor)
                    for open_ in [*files, *running]:
                        os.close(open_)
                    return request
                for file in files:
                    os.close(file)
                own = os.pidfd_open(pid)
                running[own] = number, pid
                ready.register(own, selectors.EVENT_READ)
                front.send(json.dumps(["started", number, pid]).encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as front:
        request = serve(front)
    if request is None:
        return
    program, arguments, environment, folder = request
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # The descriptors stay open until the process ends, as in any other process.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
