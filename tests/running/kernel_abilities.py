"""Abilities that the kernel gives or refuses: namespaces, congestion control, IPv6, filters."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

from abilities import lacking, probe, python, tool

NOBODY = 65534
OTHER_CLOCK = Path(__file__).parents[1] / "emulate/programs/other_clock.py"
NEWNS, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
FORBIDDEN = {errno.EPERM, errno.ENOSPC, errno.ENOSYS, errno.EINVAL, errno.EACCES}


def _unshare(flags: int, user: int = 0) -> int:
    """0, or the errno of unshare(flags) in a child. The child becomes `user` if this process is
    root."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            if user and os.geteuid() == 0:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            libc = ctypes.CDLL(None, use_errno=True)
            code = 0 if libc.unshare(flags) == 0 else ctypes.get_errno()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _forbidden(flags: int, user: int = 0) -> str:
    own = NEWUSER if user or os.geteuid() != 0 else 0
    code = _unshare(flags | own, user)
    if code == 0:
        return ""
    if code not in FORBIDDEN:
        raise OSError(code, f"unshare({flags:#x}) failed with {os.strerror(code)}")
    return f"the kernel refuses them: {errno.errorcode[code]}"


TWO_HOSTS = """
from hetcomm.emulate import Cluster, Host, Nic, RefusedError, run
from hetcomm.emulate.error import MASKED
try:
    cluster = Cluster((Host("red0", 1, (Nic(),)), Host("blue0", 1, (Nic(),))))
    print(*run(cluster, ["true"], timeout=60).notes)
except RefusedError as error:
    print("masked" if error.remedy == MASKED else error.key, error.got, error, sep="\\n")
    raise SystemExit(77)
"""


@cache
def _two_hosts() -> subprocess.CompletedProcess[str]:
    return python(TWO_HOSTS)


@probe("namespaces")
def namespaces() -> str:
    """The kernel permits emulated clusters of two hosts."""
    done = _two_hosts()
    if done.returncode == 0:
        return ""
    if done.returncode != 77:
        raise RuntimeError(done.stdout + done.stderr)
    refused, got, text = done.stdout.split("\n", 2)
    forbidden = {errno.errorcode[one] for one in (*FORBIDDEN, errno.EROFS)}
    if refused not in ("namespaces", "masked") or got.split()[0] not in forbidden:
        raise RuntimeError(f"expected a refusal to make namespaces; got {text}")
    return text.strip()


@probe("limits of addresses")
def limits_of_addresses() -> str:
    """`ulimit -v` bounds what a process maps, which qemu's emulation of a processor ignores."""
    program = """
import mmap, resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    mmap.mmap(-1, 2 << 30)
    print("mapped")
except OSError:
    print("refused")
"""
    done = python(program)
    if done.stdout.strip() not in ("mapped", "refused"):
        raise RuntimeError(done.stdout + done.stderr)
    return "" if done.stdout.strip() == "refused" else "a process maps more than its limit"


@probe("user namespaces")
def user_namespaces() -> str:
    return _forbidden(NEWNET, NOBODY)


@probe("mount namespaces")
def mount_namespaces() -> str:
    return _forbidden(NEWNS)


@probe("network namespaces")
def network_namespaces() -> str:
    return _forbidden(NEWNET)


@probe("process namespaces")
def process_namespaces() -> str:
    return _forbidden(NEWPID)


@probe("time namespaces")
def time_namespaces() -> str:
    """A rank of an emulated cluster can have a clock of its own."""
    if os.geteuid() != 0:
        return "only root gives ranks a clock of their own"
    done = subprocess.run(
        [sys.executable, str(OTHER_CLOCK), os.devnull],  # an empty program
        env=os.environ | {"RANK": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 0:
        return ""
    refused = re.search(r"\[Errno (\d+)\]", done.stderr)
    if refused is None or int(refused[1]) not in FORBIDDEN:
        raise RuntimeError(done.stdout + done.stderr)
    return f"the kernel refuses them: {errno.errorcode[int(refused[1])]}"


@probe("named network namespaces")
def named_namespaces() -> str:
    """The namespaces of `ip netns`."""
    return "only root makes them" if os.geteuid() != 0 else tool("ip") or _forbidden(NEWNET)


@probe("another user")
def another_user() -> str:
    """A test may start a process of another user."""
    if os.geteuid() != 0:
        return "only root becomes another user"
    return "" if "4294967295" in Path("/proc/self/uid_map").read_text() else "one user is mapped"


@probe("cubic")
def cubic() -> str:
    """Emulated hosts may use cubic as congestion control."""
    if why := lacking("namespaces"):
        return why
    said = _two_hosts().stdout.strip()
    if said and "network.congestion" not in said:
        raise RuntimeError(f"expected nothing or a note on network.congestion; got {said}")
    return said


@probe("IPv6")
def ipv6() -> str:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return str(error)
    return ""


@probe("seccomp filters")
def seccomp_filters() -> str:
    """A process may set filters of system calls for itself."""
    set_seccomp, filter_mode = 22, 2
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(set_seccomp, filter_mode, None, 0, 0)  # with no filter to read
    code = ctypes.get_errno()
    return "" if code == errno.EFAULT else f"this kernel has none: {errno.errorcode[code]}"


@probe("invariant counter")
def invariant_counter() -> str:
    """Of an x86-64 processor; the kernel tells of its timer."""
    if "nonstop_tsc" not in Path("/proc/cpuinfo").read_text().split():
        return "the processor does not say that its counter has one rate"
    timer = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return "" if timer.exists() else f"the kernel has no {timer}"


# `WITH_OWN_PORTS FIRST LAST COMMAND ...`: a command on a network with this range of ports.
WITH_OWN_PORTS = (
    "unshare", "--user", "--map-root-user", "--net", "sh", "-c",
    "ip link set lo up && echo $0 $1 > /proc/sys/net/ipv4/ip_local_port_range"
    ' && shift && exec "$@"',
)  # fmt: skip


@probe("own range of ports")
def own_range_of_ports() -> str:
    if why := tool("unshare") or tool("ip") or _forbidden(NEWUSER | NEWNET):
        return why
    done = subprocess.run(
        [*WITH_OWN_PORTS, "40000", "40005", "true"], capture_output=True, text=True, timeout=30
    )
    return "" if done.returncode == 0 else done.stderr.strip() or f"it ends with {done.returncode}"


@probe("unshare")
def unshare() -> str:
    """The command, and user namespaces for it."""
    return tool("unshare") or _forbidden(NEWUSER | NEWNET)
