"""Process 1 of an emulated host: mounts private directories, starts ranks and reaps processes."""

import os
import pickle
import selectors
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from . import kernel, preload, sysfs
from .error import MASKED, ClusterError, describe, refusal
from .job import PRIVATE_DIRECTORY, SYSFS_ROOT, Job

START, TERMINATE = b"start", b"terminate"
READY = "ready"


def serve(job: Job, index: int, outputs: dict[int, int], control: socket.socket) -> NoReturn:
    """Runs the ranks of host `index` until `control` closes. The kernel then ends all processes.

    `outputs` has the descriptor for the output of each rank. Sends READY or a ClusterError, then
    (rank, exit code) for each rank that ends. Receives START and TERMINATE.
    """
    try:
        kept = {1, 2, control.fileno(), *outputs.values()}
        kernel.close_all_but(kept | preload.descriptors)
        try:
            _make_private(job, index)
        except ClusterError as error:
            control.send(pickle.dumps(error))
            os._exit(1)
        _Ranks(job, outputs, control).run()
    finally:
        os._exit(1)


class _Ranks:
    """The ranks of this host. Used by one thread."""

    def __init__(self, job: Job, outputs: dict[int, int], control: socket.socket) -> None:
        self._job = job
        self._outputs = outputs
        self._control = control
        self._running: dict[int, int] = {}  # pid -> rank
        self._processes: list[subprocess.Popen[bytes]] = []  # kept: Popen's destructor reaps
        self._child_ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(self._child_ended, selectors.EVENT_READ)
        self._report(READY)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not self._control:
                    os.read(self._child_ended, 4096)
                    self._reap()
                elif not self._handle(self._control.recv(64)):
                    return

    def _handle(self, message: bytes) -> bool:
        if message == START:
            for rank, output in self._outputs.items():
                self._start(rank, output)
        elif message == TERMINATE:
            for pid in self._running:
                os.killpg(pid, signal.SIGTERM)
        return bool(message)

    def _start(self, rank: int, output: int) -> None:
        try:
            pid = (preload.fork if self._job.preload else self._spawn)(self._job, rank, output)
        except OSError as error:
            os.write(output, f"cannot run {self._job.command[0]}: {describe(error)}\n".encode())
            self._report((rank, 127))
        else:
            self._running[pid] = rank
        os.close(output)

    def _spawn(self, job: Job, rank: int, output: int) -> int:
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=job.environment_of(rank),
            start_new_session=True,
        )
        self._processes.append(process)
        return process.pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._running.pop(pid, None)  # None: an orphan that process 1 inherited
            if rank is not None:
                self._report((rank, os.waitstatus_to_exitcode(status)))

    def _report(self, message: object) -> None:
        self._control.send(pickle.dumps(message))


def _make_private(job: Job, index: int) -> None:
    host = job.cluster.hosts[index]
    harmless = kernel.MOUNT_NO_SUID | kernel.MOUNT_NO_DEV | kernel.MOUNT_NO_EXEC
    with refusal(host.name, "the kernel to make private mounts", MASKED):
        kernel.unshare(kernel.NEW_MOUNT)
        kernel.mount("none", "/", "", kernel.MOUNT_RECURSIVE | kernel.MOUNT_PRIVATE)
    with refusal(host.name, "the kernel to mount a new /proc", MASKED):
        kernel.mount("proc", "/proc", "proc", harmless)
    with refusal(host.name, "the kernel to mount a new /sys", MASKED):
        _mount_sysfs(harmless | kernel.MOUNT_READ_ONLY)
    flags = kernel.MOUNT_NO_SUID | kernel.MOUNT_NO_DEV
    with refusal(host.name, "the kernel to mount a tmpfs on /dev/shm", "create /dev/shm"):
        kernel.mount("tmpfs", "/dev/shm", "tmpfs", flags, "mode=1777")
    sysfs.write(Path(SYSFS_ROOT), job.cluster, index)
    names = Path(PRIVATE_DIRECTORY) / "hosts"
    names.write_text(job.hosts_file())
    if Path("/etc/hosts").exists():
        with refusal(host.name, "the kernel to replace /etc/hosts", MASKED):
            kernel.mount(str(names), "/etc/hosts", "", kernel.MOUNT_BIND)


def _mount_sysfs(flags: int) -> None:
    """Mounts /sys anew, so /sys/class/net shows this namespace. Keeps the control groups."""
    groups = None
    with suppress(FileNotFoundError):  # a machine without control groups
        groups = os.open("/sys/fs/cgroup", os.O_PATH | os.O_CLOEXEC)
    kernel.mount("sysfs", "/sys", "sysfs", flags)
    if groups is not None:
        source = f"/proc/self/fd/{groups}"
        kernel.mount(source, "/sys/fs/cgroup", "", kernel.MOUNT_BIND | kernel.MOUNT_RECURSIVE)
        os.close(groups)
