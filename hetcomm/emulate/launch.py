"""The front process: starts the supervisor, passes on output of ranks, and bounds the run."""

import codecs
import logging
import os
import pickle
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TextIO

from hetcomm.job_key import with_job_key

from . import preload as modules
from . import vendors
from .cluster import Cluster
from .error import ClusterError
from .job import Job
from .result import Result

GRACE_SECONDS = 15.0
STOP_SECONDS = 8.0  # more than the supervisor takes from SIGTERM to SIGKILL
MOST_PORTS = 1023  # of a switch of the kernel

# A user namespace demands one thread, so the supervisor is a new interpreter. It does not run
# hetcomm's __init__, so it starts fast.
_BOOTSTRAP = """
import sys, types
package = types.ModuleType("hetcomm")
package.__path__ = [sys.argv.pop(1)]
sys.modules["hetcomm"] = package
from hetcomm.emulate.entry import main
sys.exit(main())
"""


def run(
    cluster: Cluster,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stdout: TextIO | Path | None = None,
    grace: float = GRACE_SECONDS,
    port: int = 29500,
    preload: Sequence[str] = (),
) -> Result:
    """Runs `command` once per rank of `cluster` and waits for all of them.

    `env` is the ranks' environment (default: this process's), with RANK, WORLD_SIZE and the like
    added, and with a new job key if it has none. `port` becomes MASTER_PORT. The hosts have
    ports of their own, so any port is free. After `timeout` seconds (None: no limit), or `grace`
    seconds after the first rank fails, all ranks get SIGTERM, and 5 s later SIGKILL. `stdout` takes
    the output of ranks: a text stream gets lines with the prefix `[rank host]` (default:
    sys.stdout), a directory gets a file `rank-N.log` per rank. Ranks have no terminal, and an empty
    stdin.

    `preload` names modules to import once for all ranks, for instance torch. The ranks are then
    forks with these modules, and `command` must be FILE or `-m` MODULE of `sys.executable`.
    Python's own variables, such as PYTHONPATH, are those of this process.

    The result's `notes` name what the machine does not permit, where the cluster works without. The
    logger `hetcomm.emulate` warns of each note once per process.

    Raises RefusedError if the kernel refuses a part of the cluster, ClusterError for a wrong
    cluster. Any exception, such as KeyboardInterrupt, first ends the whole job.
    """
    if len(cluster.hosts) > MOST_PORTS:
        raise ClusterError(
            "host", f"up to {MOST_PORTS} hosts of one run", str(len(cluster.hosts)),
            "a switch of the kernel has no more ports; explain and plan take more hosts",
        )  # fmt: skip
    vendors.check(cluster)
    command = _resolve(command)
    modules.check(preload, command)
    if isinstance(stdout, Path):
        stdout.mkdir(parents=True, exist_ok=True)
    job = Job(
        cluster=cluster,
        command=command,
        environment=with_job_key(os.environ if env is None else env),
        port=port,
        timeout=timeout,
        grace=grace,
        log_directory=str(stdout.resolve()) if isinstance(stdout, Path) else None,
        preload=tuple(preload),
    )
    stream = sys.stdout if stdout is None or isinstance(stdout, Path) else stdout
    front, theirs = socket.socketpair()
    with front:
        with theirs:
            process = _start(theirs)
        result = _supervise(process, front, job, stream)
    for note in result.notes:
        _log_once(note)
    return result


@cache
def _log_once(note: str) -> None:
    """Logs a note once per process, since later runs on this machine have the same notes."""
    logging.getLogger(__package__).warning("hetcomm emulate: %s", note)


def _start(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    package = str(Path(__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOTSTRAP, package, str(theirs.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # Ctrl-C reaches this process alone, and run() ends the job
    )


def _supervise(
    process: "subprocess.Popen[bytes]", front: socket.socket, job: Job, stream: TextIO
) -> Result:
    assert process.stdin is not None and process.stdout is not None
    output = _SupervisorOutput(process.stdout, front, stream)
    try:
        with suppress(BrokenPipeError), process.stdin:  # after an early end answer() raises
            process.stdin.write(pickle.dumps(job))
        output.listen(None)
        process.wait(STOP_SECONDS)
    except BaseException:
        with suppress(OSError):  # it has already closed its end
            front.shutdown(socket.SHUT_WR)
        try:
            output.listen(time.monotonic() + STOP_SECONDS)
        finally:
            process.kill()  # the kernel then ends the whole job, which closes the output
            output.listen(time.monotonic() + STOP_SECONDS)
            process.wait(STOP_SECONDS)
        raise
    finally:
        process.stdout.close()
    return output.answer(process.returncode)


class _SupervisorOutput:
    """Forwards the lines of ranks, and collects the supervisor's answer."""

    def __init__(self, output: IO[bytes], front: socket.socket, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._answer = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(output, selectors.EVENT_READ, self._forward)
        self._selector.register(front, selectors.EVENT_READ, self._collect)

    def listen(self, until: float | None) -> None:
        """Returns when all processes of the job have closed their ends, or at `until`."""
        while self._selector.get_map():
            wait = None if until is None else until - time.monotonic()
            if wait is not None and wait <= 0:
                return
            for key, _ in self._selector.select(wait):
                data = os.read(key.fd, 65536)
                if not data:
                    self._selector.unregister(key.fileobj)
                key.data(data)

    def answer(self, exit_code: int) -> Result:
        if not self._answer:
            raise RuntimeError(
                f"expected a result from the supervisor, but it ended with status {exit_code}; "
                "standard error has the reason"
            )
        answer = pickle.loads(self._answer)
        if isinstance(answer, ClusterError):
            raise answer
        assert isinstance(answer, Result)
        return answer

    def _forward(self, data: bytes) -> None:
        if self._stream is None:
            return
        stream, self._stream = self._stream, None  # a failing stream is not used again
        stream.write(self._decode(data, final=not data))
        stream.flush()
        self._stream = stream

    def _collect(self, data: bytes) -> None:
        self._answer += data


def _resolve(command: Sequence[str]) -> tuple[str, ...]:
    if not command:
        raise ClusterError("command", "a command to run", "none", "write it after --")
    if shutil.which(command[0]) is None:
        raise ClusterError(
            "command", "an executable file", repr(command[0]), "check its name and the PATH"
        )
    return tuple(command)
