"""Linux calls that Python 3.11 lacks. Each raises OSError."""

import ctypes
import os
import signal
from contextlib import suppress

NEW_MOUNT = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PID = 0x20000000
NEW_NET = 0x40000000

MOUNT_READ_ONLY = 0x1
MOUNT_NO_SUID = 0x2
MOUNT_NO_DEV = 0x4
MOUNT_NO_EXEC = 0x8
MOUNT_BIND = 0x1000
MOUNT_RECURSIVE = 0x4000
MOUNT_PRIVATE = 0x40000

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def enter_namespace(descriptor: int) -> None:
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(0)), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = [ctypes.c_char_p(os.fsencode(text)) for text in (source, target, kind)]
    data = ctypes.c_char_p(options.encode())
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data), f"mount {target}")


def open_descriptors() -> set[int]:
    """The descriptors of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own descriptor is closed already
            os.fstat(int(name))
            found.add(int(name))
    return found


def close_all_but(kept: set[int]) -> None:
    """Closes other descriptors. Otherwise their readers would not see the end of the writers."""
    for descriptor in open_descriptors() - kept:
        os.close(descriptor)


def die_with_parent() -> None:
    """Sends this process SIGKILL at the end of the thread that started it."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0), "prctl")
