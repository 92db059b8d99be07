"""The congestion control of an emulated host's TCP connections.

A network namespace may use only controls that are not restricted: those in the machine's
tcp_allowed_congestion_control, and the machine's default.
"""

import errno
from pathlib import Path

from .error import MASKED, ClusterError, describe

# Linux's default, and its nearest relative, which a namespace may nearly always use. A machine's
# setting for the internet, such as bbr, may share a link among connections less evenly. Where a
# fast host sends to a slow one, bbr also loses more packets at the switch.
PREFERRED = "cubic"
CHOICES = (PREFERRED, "reno")
CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def choose(wanted: str | None) -> str:
    """Sets and returns the control of the caller's network namespace.

    None is the first of CHOICES that the machine permits, else the machine's default. Raises
    ClusterError if the machine refuses the wanted control.
    """
    current = CONTROL.read_text(encoding="utf-8").strip()
    for name in (wanted,) if wanted else CHOICES:
        if name == current:
            return current
        try:
            CONTROL.write_text(name, encoding="utf-8")
            return name
        except OSError as error:
            if wanted:
                raise _refused(wanted, current, error) from error
    return current


def note(wanted: str | None, used: str) -> str | None:
    """The note of a run if the machine did not permit cubic."""
    if wanted is not None or used == PREFERRED:
        return None
    return (
        f"network.congestion: this machine does not permit {PREFERRED} in a network namespace, so "
        f"the emulated hosts use {used}; to permit {PREFERRED}, {_permit(PREFERRED)}"
    )


def _refused(wanted: str, current: str, error: OSError) -> ClusterError:
    if error.errno == errno.ENOENT:
        expected = (
            f"a control that this kernel has ({AVAILABLE.read_text(encoding='utf-8').strip()})"
        )
        remedy = f"choose one of these, or load it as root: modprobe tcp_{wanted}"
    elif error.errno == errno.EROFS:
        expected, remedy = "a writable /proc/sys", MASKED
    else:
        expected = f"a machine that permits {wanted} in a network namespace"
        remedy = _permit(wanted)
    remedy += f", or delete the key and get {current}"
    return ClusterError("network.congestion", expected, describe(error), remedy)


def _permit(name: str) -> str:
    allowed = f"{ALLOWED.read_text(encoding='utf-8').strip()} {name}" if ALLOWED.exists() else name
    load = "" if name in AVAILABLE.read_text(encoding="utf-8").split() else f"modprobe tcp_{name}; "
    return (
        f"run, as root outside of any container, {load}"
        f"sysctl net.ipv4.tcp_allowed_congestion_control='{allowed}'"
    )
