"""Unlike machines: how a process becomes one of each, and the checks that may fail there.

Nothing outlives the process, and no setting of this machine changes.
"""

import errno
import os
import resource
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import seccomp
from pyroute2 import IPRoute

import hetcomm
from hetcomm.emulate import congestion, kernel

CHECKS = ("small", "large", "messages", "shared", "ddp")  # of checks.py
NOBODY = 65534
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_REMOUNT = 0x20


@dataclass(frozen=True)
class Machine:
    """A kind of machine, and the expected results there.

    become: makes the calling process, with its one thread, a process of this machine; takes a
        folder. Raises OSError if the kernel refuses.
    facts: the expected result of facts().
    needs: the missing ability of a machine whose kernel refuses.
    emulates, has_ranks: whether to try emulated hosts, and ranks.
    imports: whether the ranks import torch there, instead of before.
    fails: [check] -> words of the error of the check; every other check works.
    says: [check] -> words on the output of the check.
    """

    become: Callable[[Path], None]
    facts: Mapping[str, object] = field(default_factory=dict)
    needs: str = ""
    emulates: bool = False
    has_ranks: bool = True
    imports: bool = False
    fails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    says: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _enter(flags: int) -> None:
    """Enters new namespaces. A user other than root gets the right to them in a user namespace."""
    if os.geteuid() == 0:
        kernel.unshare(flags)
    else:
        _enter_user_namespace(flags, os.geteuid(), os.getegid())
    if flags & kernel.NEW_MOUNT:
        kernel.mount("none", "/", "", kernel.MOUNT_RECURSIVE | kernel.MOUNT_PRIVATE)
    if flags & kernel.NEW_NET:
        with IPRoute() as here:
            here.link("set", index=here.link_lookup(ifname="lo")[0], state="up")


def _enter_user_namespace(flags: int, user: int, group: int) -> None:
    """Enters one as `user`. This process has all rights inside, its executed programs have none."""
    outside = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEW_USER | flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {outside[0]} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {outside[1]} 1")


def _replace(place: Path, file: Path, text: str) -> None:
    """A read-only file in place of another one; needs a mount namespace."""
    file.write_text(text)
    kernel.mount(str(file), str(place), "", kernel.MOUNT_BIND)
    kernel.mount("", str(place), "", kernel.MOUNT_BIND | _REMOUNT | kernel.MOUNT_READ_ONLY)


def as_it_is(folder: Path) -> None:
    pass


def restricted_cubic(folder: Path) -> None:
    """The default is bbr, and emulated hosts cannot choose cubic."""
    permitted = congestion.ALLOWED.read_text().split()
    if "cubic" in [*permitted, congestion.CONTROL.read_text().strip()]:
        _enter(kernel.NEW_MOUNT)
        _replace(congestion.CONTROL, folder / "control", "bbr\n")


def other_than_root(folder: Path) -> None:
    _enter_user_namespace(0, NOBODY, NOBODY)


def without_user_namespaces(folder: Path) -> None:
    other_than_root(folder)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def container(folder: Path) -> None:
    """The default restrictions of containers."""
    calls = ("unshare", "mount", "setns", "ptrace", "process_vm_readv")
    seccomp.refuse(dict.fromkeys(calls, errno.EPERM))


def one_processor(folder: Path) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def few_descriptors(count: int) -> Callable[[Path], None]:
    return lambda folder: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def small_shared_memory(size: int) -> Callable[[Path], None]:
    def become(folder: Path) -> None:
        _enter(kernel.NEW_MOUNT)
        kernel.mount("tmpfs", "/dev/shm", "tmpfs", 0, f"mode=1777,size={size}")

    return become


def without_shared_memory(folder: Path) -> None:
    """Neither POSIX nor System V memory."""
    _enter(kernel.NEW_MOUNT)
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", kernel.MOUNT_READ_ONLY, "mode=1777")
    seccomp.refuse({"shmget": errno.ENOSYS})


def few_addresses(folder: Path) -> None:
    """As batch systems set by `ulimit -v`. An arena gets 512 MiB of that."""
    resource.setrlimit(resource.RLIMIT_AS, (8 * GIB, 8 * GIB))


def read_only_home(folder: Path) -> None:
    home = folder / "home"
    home.mkdir()
    _enter(kernel.NEW_MOUNT)
    kernel.mount("tmpfs", str(home), "tmpfs", kernel.MOUNT_READ_ONLY, "mode=555")
    os.environ["HOME"] = str(home)
    os.environ.pop("XDG_CACHE_HOME", None)


def without_ipv6(folder: Path) -> None:
    """Neither IPv6 nor a route to other machines."""
    _enter(kernel.NEW_NET)
    switch = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    if switch.exists():
        switch.write_text("1")
    seccomp.refuse_sockets(socket.AF_INET6)


def ipv6_alone(folder: Path) -> None:
    """Two interfaces. The second has the default route."""
    _enter(kernel.NEW_NET)
    without_checks = 0x02  # IFA_F_NODAD: the address is usable at once
    with IPRoute() as here:
        for number in range(2):
            here.link("add", ifname=f"eth{number}", kind="veth", peer=f"other{number}")
            for name in (f"eth{number}", f"other{number}"):
                here.link("set", index=here.link_lookup(ifname=name)[0], state="up")
            index = here.link_lookup(ifname=f"eth{number}")[0]
            address = f"fd00:0:0:{number}::5"
            here.addr("add", index=index, address=address, prefixlen=64, flags=without_checks)
        here.route("add", dst="::/0", gateway="fd00:0:0:1::1", oif=index, family=socket.AF_INET6)


def unresolved_name(folder: Path) -> None:
    _enter(kernel.NEW_NET | kernel.NEW_UTS | kernel.NEW_MOUNT)
    socket.sethostname("in-no-list-of-names")
    _replace(Path("/etc/hosts"), folder / "hosts", "")
    _replace(Path("/etc/nsswitch.conf"), folder / "nsswitch", "hosts: files\n")


def avx2_only(folder: Path) -> None:
    os.environ["HETCOMM_ISA"] = "avx2"


def locale_c(folder: Path) -> None:
    os.environ |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def path_with_spaces(folder: Path) -> None:
    package = Path(hetcomm.__file__).parent
    there = folder / "a path with spaces"
    shutil.copytree(package, there / "hetcomm", ignore=shutil.ignore_patterns("__pycache__"))
    os.environ["PYTHONPATH"] = str(there)


def without_control_groups(folder: Path) -> None:
    _enter(kernel.NEW_MOUNT)
    kernel.mount("tmpfs", "/sys", "tmpfs", 0, "mode=755")
    Path("/sys/class/net").mkdir(parents=True)


def masked_settings(folder: Path) -> None:
    """As in a container that may make namespaces: /proc/sys is read-only."""
    _enter(kernel.NEW_MOUNT)
    kernel.mount("/proc/sys", "/proc/sys", "", kernel.MOUNT_BIND)
    kernel.mount("", "/proc/sys", "", kernel.MOUNT_BIND | _REMOUNT | kernel.MOUNT_READ_ONLY)


_NAMESPACES, _USERS, _MOUNTS = "namespaces", "user namespaces", "mount namespaces"
_REFUSED = ("namespaces: expected the kernel to make", "run as root, or allow user namespaces")

MACHINES = {
    "as it is": Machine(as_it_is),
    "bbr, cubic restricted": Machine(
        restricted_cubic,
        {"control": "bbr"},
        needs=_NAMESPACES,
        emulates=True,
        says={"emulate": ("does not permit cubic", "emulated hosts use reno")},
    ),
    "other than root": Machine(other_than_root, {"user": NOBODY}, needs=_USERS, emulates=True),
    "no user namespaces": Machine(
        without_user_namespaces,
        {"user": NOBODY, "user namespaces": 0},
        needs=_USERS,
        emulates=True,
        fails={"emulate": _REFUSED},
    ),
    "container": Machine(container, emulates=True, fails={"emulate": _REFUSED}),
    "one processor": Machine(one_processor, {"processors": 1}),
    "64 descriptors": Machine(few_descriptors(64), {"descriptors": 64}),
    "256 descriptors": Machine(few_descriptors(256), {"descriptors": 256}),
    "64 KiB of /dev/shm": Machine(
        small_shared_memory(64 * KIB),
        {"bytes of /dev/shm": 64 * KIB},
        needs=_MOUNTS,
    ),
    "8 MiB of /dev/shm": Machine(
        small_shared_memory(8 * MIB),
        {"bytes of /dev/shm": 8 * MIB},
        needs=_MOUNTS,
    ),
    # UCX takes this for enough, and then its first 36 KiB leave too little.
    "16 MiB of /dev/shm": Machine(
        small_shared_memory(16 * MIB),
        {"bytes of /dev/shm": 16 * MIB},
        needs=_MOUNTS,
    ),
    "no shared memory for UCX": Machine(
        without_shared_memory,
        {"writable /dev/shm": False, "System V memory": False},
        needs=_MOUNTS,
        says={"0": ("without the shared memory posix, sysv", "/dev/shm cannot be written")},
    ),
    "few addresses": Machine(few_addresses, {"bytes of addresses": 8 * GIB}, imports=True),
    "read-only HOME": Machine(
        read_only_home, {"writable HOME": False}, needs=_MOUNTS, imports=True
    ),
    "no IPv6": Machine(without_ipv6, {"IPv6": False}, needs=_NAMESPACES),
    "IPv6 alone": Machine(
        ipv6_alone,
        {"IPv4 network": False},
        needs=_NAMESPACES,
        says={"topo": ("├── eth1: ethernet",)},  # the first of two
    ),
    "a host name that does not resolve": Machine(
        unresolved_name, {"own name": False, "localhost": False}, needs=_NAMESPACES
    ),
    "AVX2 only": Machine(avx2_only),
    "locale C": Machine(locale_c, imports=True),
    "no control groups": Machine(
        without_control_groups,
        {"control groups": False},
        needs=_NAMESPACES,
        emulates=True,
        has_ranks=False,
    ),
    "masked /proc/sys": Machine(
        masked_settings,
        {"writable settings": False},
        needs=_NAMESPACES,
        emulates=True,
        has_ranks=False,
        fails={"emulate": ("expected a writable /proc/sys", "systempaths=unconfined")},
    ),
    "a path with spaces": Machine(path_with_spaces, needs=_NAMESPACES, emulates=True, imports=True),
}
