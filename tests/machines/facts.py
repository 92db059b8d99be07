"""The facts that a process sees of its machine, to prove that it runs on another machine."""

import ctypes
import os
import resource
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path


def _works(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True


def _system_v_memory() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, 1, 0o1600)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    libc.shmctl(segment, 0, None)


def facts() -> dict[str, object]:
    shared = os.statvfs("/dev/shm")
    return {
        "user": os.geteuid(),
        "user namespaces": int(Path("/proc/sys/user/max_user_namespaces").read_text()),
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "processors": len(os.sched_getaffinity(0)),
        "bytes of /dev/shm": shared.f_blocks * shared.f_frsize,
        "writable /dev/shm": os.access("/dev/shm", os.W_OK),
        "System V memory": _works(_system_v_memory),
        "bytes of addresses": resource.getrlimit(resource.RLIMIT_AS)[0],
        "writable HOME": _works(lambda: tempfile.TemporaryFile(dir=Path.home()).close()),
        "writable settings": os.access("/proc/sys/net/ipv4/tcp_congestion_control", os.W_OK),
        "control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "control groups": Path("/sys/fs/cgroup").exists(),
        "IPv6": _works(lambda: socket.socket(socket.AF_INET6).close()),
        "IPv4 network": len(Path("/proc/net/route").read_text().splitlines()) > 1,
        "own name": _works(lambda: socket.getaddrinfo(socket.gethostname(), None)),
        "localhost": _works(lambda: socket.getaddrinfo("localhost", None)),
    }
