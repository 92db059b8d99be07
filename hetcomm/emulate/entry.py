"""The supervisor's process: reads the job, enters new namespaces and forks process 1 in them."""

import os
import pickle
import socket
import sys
from pathlib import Path

from . import kernel
from .error import ClusterError, refusal
from .supervisor import Supervisor

# UTS and IPC too: without privilege, a process can return only to namespaces that it has made.
_NAMESPACES = kernel.NEW_MOUNT | kernel.NEW_NET | kernel.NEW_PID | kernel.NEW_UTS | kernel.NEW_IPC
_REMEDY = (
    "run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0, user.max_*_namespaces above 0); "
    "in a container, also allow unshare and mount (docker: --privileged)"
)


def main() -> int:
    """Reads a pickled Job on stdin; answers with a pickled Result or ClusterError on a socket."""
    front = socket.socket(fileno=int(sys.argv[1]))
    with sys.stdin.buffer as source:
        job = pickle.load(source)
    try:
        _enter_namespaces()
    except ClusterError as error:
        front.sendall(pickle.dumps(error))
        return 1
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            kernel.die_with_parent()
            status = _supervise(Supervisor(job, front), front)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)  # the end of process 1 ends all processes of the namespace
    front.close()
    os.close(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _supervise(supervisor: Supervisor, front: socket.socket) -> int:
    try:
        answer: object = supervisor.run()
    except ClusterError as error:
        answer = error
    try:
        front.sendall(pickle.dumps(answer))
    except BrokenPipeError:  # the front process has ended
        return 1
    return 0


def _enter_namespaces() -> None:
    with refusal("namespaces", "the kernel to make new namespaces", _REMEDY):
        try:
            kernel.unshare(_NAMESPACES)
        except PermissionError:
            _enter_user_namespace()
    kernel.die_with_parent()  # after unshare: a change of credentials resets it
    with refusal("namespaces", "the kernel to make mounts private", _REMEDY):
        kernel.mount("none", "/", "", kernel.MOUNT_RECURSIVE | kernel.MOUNT_PRIVATE)


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    with refusal("namespaces", "the kernel to make a user namespace", _REMEDY):
        kernel.unshare(kernel.NEW_USER | _NAMESPACES)
        # Ranks keep their ids, so they have no more rights than outside.
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
