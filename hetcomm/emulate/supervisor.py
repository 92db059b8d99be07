"""Process 1 of an emulated cluster: builds the network, watches ranks and ends all processes."""

import os
import pickle
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from . import congestion, kernel, preload
from .cluster import Host
from .error import ClusterError, refusal
from .host import READY, START, TERMINATE, serve
from .job import Job
from .logs import new_log
from .network import Network, note
from .result import Result

SETUP_SECONDS = 30.0
TERMINATION_SECONDS = 5.0  # between SIGTERM and SIGKILL
LONGEST_LINE = 65536
_HOST_NAMESPACES = {
    "net": kernel.NEW_NET,
    "uts": kernel.NEW_UTS,
    "ipc": kernel.NEW_IPC,
    "pid": kernel.NEW_PID,
}


@dataclass(slots=True)
class _HostProcess:
    pid: int
    control: socket.socket
    ranks: list[int]
    ready: bool = False


@dataclass(slots=True)
class _Output:
    """The output of one rank, written line by line with a prefix."""

    prefix: bytes
    pending: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self.pending += data
        *lines, rest = self.pending.split(b"\n")
        if len(rest) > LONGEST_LINE or (rest and not data):
            lines.append(rest)
            rest = bytearray()
        self.pending = bytearray(rest)
        _write_output(b"".join(self.prefix + line + b"\n" for line in lines))


class Supervisor:
    """Runs one job in the namespaces of the calling process. Used once, by one thread."""

    def __init__(self, job: Job, front: socket.socket) -> None:
        self._job = job
        self._front = front
        self._selector = selectors.DefaultSelector()
        self._hosts: list[_HostProcess] = []
        self._exit_codes: dict[int, int] = {}
        self._failed_rank: int | None = None
        self._timed_out = False
        self._stopping = False
        self._terminate_at: float | None = None
        self._kill_at: float | None = None
        self._ready_by = 0.0

    def run(self) -> Result:
        """Raises ClusterError if the kernel refuses a part of the cluster."""
        preload.import_modules(self._job, self._front)
        self._ready_by = time.monotonic() + SETUP_SECONDS
        network = Network(self._job.cluster)
        for index, host in enumerate(self._job.cluster.hosts):
            with refusal(host.name, "the kernel to make namespaces", _NAMESPACE_REMEDY):
                self._start_host(network, index, host)
        self._watch(self._front, self._on_front)
        while not all(host.ready for host in self._hosts):
            self._step(self._ready_by)
            if time.monotonic() > self._ready_by:
                hosts = zip(self._job.cluster.hosts, self._hosts, strict=True)
                unready = [host.name for host, process in hosts if not process.ready]
                expected = f"every host to be ready in {SETUP_SECONDS:g} s"
                raise ClusterError("set-up", expected, f"{unready} unready", "free the machine")
        started = time.monotonic()
        if self._job.timeout is not None:
            self._terminate_at = started + self._job.timeout
        for process in self._hosts:
            _send(process, START)
        self._wait()
        duration = time.monotonic() - started
        links = network.use()
        self._end_hosts()
        cluster = self._job.cluster
        ranks, wanted = range(cluster.ranks), cluster.congestion
        return Result(
            exit_codes=tuple(self._exit_codes[rank] for rank in ranks),
            hosts=tuple(cluster.hosts[i].name for i in cluster.placement),
            links=links,
            congestion=network.congestion,
            notes=tuple(filter(None, (congestion.note(wanted, network.congestion), note(cluster)))),
            duration=duration,
            failed_rank=self._failed_rank,
            timed_out=self._timed_out,
        )

    def _wait(self) -> None:
        """Until all ranks have ended, by themselves or by a deadline."""
        ranks = self._job.cluster.ranks
        while len(self._exit_codes) < ranks:
            self._step(self._kill_at or self._terminate_at)
            if len(self._exit_codes) < ranks:
                self._apply_deadlines(time.monotonic())

    def _start_host(self, network: Network, index: int, host: Host) -> None:
        own_namespaces = {
            name: os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            for name in _HOST_NAMESPACES
        }
        kernel.unshare(sum(_HOST_NAMESPACES.values()))
        socket.sethostname(host.name)
        network.attach(index)
        ranks = self._job.ranks_on(index)
        readers, writers = zip(*(self._open_output(rank) for rank in ranks), strict=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            serve(self._job, index, dict(zip(ranks, writers, strict=True)), theirs)
        theirs.close()
        for descriptor in writers:
            os.close(descriptor)
        for descriptor in own_namespaces.values():
            kernel.enter_namespace(descriptor)
            os.close(descriptor)
        process = _HostProcess(pid, ours, ranks)
        self._hosts.append(process)
        self._watch(ours, lambda: self._on_host(process))
        for rank, reader in zip(ranks, readers, strict=True):
            if reader is not None:
                self._read_output(rank, reader, host.name)

    def _open_output(self, rank: int) -> tuple[int | None, int]:
        if self._job.log_directory is None:
            return os.pipe()
        return None, new_log(self._job.log_directory, rank)

    def _read_output(self, rank: int, reader: int, host: str) -> None:
        output = _Output(f"[{rank} {host}] ".encode())

        def on_data() -> None:
            data = os.read(reader, 65536)
            output.add(data)
            if not data:
                self._selector.unregister(reader)
                os.close(reader)

        self._watch(reader, on_data)

    def _watch(self, source: int | socket.socket, action: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, action)

    def _step(self, until: float | None) -> None:
        wait = None if until is None else max(0.0, until - time.monotonic())
        for key, _ in self._selector.select(wait):
            key.data()

    def _on_front(self) -> None:
        """The front process has closed its end: it was interrupted, or has died."""
        self._selector.unregister(self._front)
        self._stopping = True
        self._terminate_at = time.monotonic()
        self._ready_by = 0.0

    def _on_host(self, process: _HostProcess) -> None:
        data = process.control.recv(65536)
        message = pickle.loads(data) if data else None
        if message == READY:
            process.ready = True
        elif isinstance(message, ClusterError):
            raise message
        elif message is not None:
            self._on_exit(*message)
        else:  # process 1 of the host has died, so all its ranks have
            self._selector.unregister(process.control)
            process.ready = True
            for rank in process.ranks:
                self._on_exit(rank, -signal.SIGKILL)

    def _on_exit(self, rank: int, code: int) -> None:
        if self._exit_codes.setdefault(rank, code) == 0:
            return
        ending = self._stopping or self._timed_out or self._failed_rank is not None
        if not ending:
            self._failed_rank = rank
            self._terminate_at = time.monotonic() + self._job.grace

    def _apply_deadlines(self, now: float) -> None:
        if self._kill_at is not None:
            if now >= self._kill_at:
                for process in self._hosts:
                    os.kill(process.pid, signal.SIGKILL)
                self._kill_at = now + TERMINATION_SECONDS
        elif self._terminate_at is not None and now >= self._terminate_at:
            self._timed_out = not self._stopping and self._failed_rank is None
            for process in self._hosts:
                _send(process, TERMINATE)
            self._kill_at = now + TERMINATION_SECONDS

    def _end_hosts(self) -> None:
        """Ends every process of the job, also stray children, and writes their last output."""
        for process in self._hosts:
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            if process.control in self._selector.get_map():
                self._selector.unregister(process.control)
        if self._front in self._selector.get_map():
            self._selector.unregister(self._front)
        while self._selector.get_map():
            self._step(None)


_NAMESPACE_REMEDY = "raise the limits under /proc/sys/user/max_*_namespaces"


def _send(process: _HostProcess, message: bytes) -> None:
    with suppress(OSError):  # the host has ended, and _on_host() sees its closed socket
        process.control.send(message)


def _write_output(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
