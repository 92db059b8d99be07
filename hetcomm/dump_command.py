"""`hetcomm dump`: who waits for whom in a running job, and since when.

Each process with hetcomm groups listens at a socket of the abstract namespace, which answers to its
own user and to root. One process is enough, because it asks all ranks of its groups.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from hetcomm import _core
from hetcomm.printable import printable

BOUND = 10.0  # seconds for the beginning of an answer, which takes two at most
_ALL = 30.0  # seconds for all of an answer
_MOST = 256 << 20  # bytes of an answer; 4,000 ranks' timelines take a part of this
_MOST_NAMES = 16  # sockets of one process; any user may bind such a name
_SOCKET = re.compile(r"@(hetcomm-dump-(\d+)-\d+)$", re.MULTILINE)
_PROCESS = re.compile(r", process (\d+): ")


def dump(
    process: Annotated[
        int | None,
        typer.Argument(help="Id of a process of the job; by default all of this host and user."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Also writes the last steps of all ranks for Chrome's trace viewer."),
    ] = None,
) -> None:
    """Shows who waits for whom in a running job, and since when."""
    if process is not None:
        print(printable(ask(process, "state")), end="")
    else:
        process = _ask_all()
    if trace is not None:
        trace.write_text(ask(process, "trace"))
        print(f"trace: {trace}")


def _ask_all() -> int:
    """Prints the state of every job of this user on this host. Returns the first process that
    answers.

    A process without an answer may be ending or stopped. Standard error names it, unless it is
    gone.
    """
    found = sorted(
        int(pid) for _, pid in _SOCKET.findall(Path("/proc/net/unix").read_text(encoding="utf-8"))
    )
    found = [pid for pid in found if _is_own(pid)]
    if not found:
        raise _core.InvalidArgumentError(
            "dump: expected a process of this user with hetcomm groups in this network namespace, "
            "got none; name the process: hetcomm dump PID"
        )
    told: set[int] = set()
    answered: list[int] = []
    for pid in found:
        if pid in told:
            continue
        try:
            text = ask(pid, "state")
        except _core.Error as error:
            if _is_own(pid):
                print(printable(str(error)), file=sys.stderr)
            continue
        answered.append(pid)
        told |= {int(one) for one in _PROCESS.findall(text)}
        print(printable(text), end="")
    if not answered:
        raise _core.TransportError(
            f"dump: none of the {len(found)} processes with hetcomm groups answers; see the lines "
            "above, or name a process: hetcomm dump PID"
        )
    return answered[0]


def _is_own(process: int) -> bool:
    try:
        return os.stat(f"/proc/{process}").st_uid == os.geteuid()
    except OSError:
        return False


def ask(process: int, request: str) -> str:
    """The answer of a process to "state" or "trace".

    Raises:
        hetcomm.InvalidArgumentError: there is no such process, or it has no hetcomm groups.
        hetcomm.TransportError: it belongs to another user, or does not answer.
    """
    with _connect(process) as connection:
        end = time.monotonic() + _ALL
        connection.settimeout(BOUND)
        answer = bytearray()
        try:
            connection.sendall(f"{request}\n".encode())
            while piece := connection.recv(1 << 16):
                answer += piece
                if len(answer) > _MOST:
                    raise _core.TransportError(
                        f"dump: expected at most {_MOST} bytes from process {process}, got more; "
                        "see which program it runs"
                    )
                connection.settimeout(max(0.001, min(BOUND, end - time.monotonic())))
        except OSError as error:
            raise _core.TransportError(
                f"dump: process {process} does not answer in time ({error}); it is stopped, or in "
                "a library that stands still; ask a process of another rank"
            ) from None
    if not answer:
        raise _core.TransportError(
            f"dump: process {process} has closed the connection; it answers to its own user and to "
            "root, and runs the same hetcomm version"
        )
    return answer.decode(errors="replace")


def _connect(process: int) -> socket.socket:
    try:
        listed = Path(f"/proc/{process}/net/unix").read_text(encoding="utf-8")
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError as error:
        raise _core.InvalidArgumentError(
            f"dump: expected the id of a running process, got {process}: {error.strerror}"
        ) from None
    inside = int(re.findall(r"^NSpid:.*?(\d+)$", status, re.MULTILINE)[0])
    owner = int(re.findall(r"^Uid:\s+\d+\s+(\d+)", status, re.MULTILINE)[0])
    names = [name for name, pid in _SOCKET.findall(listed) if int(pid) == inside]
    if not names:
        raise _core.InvalidArgumentError(
            f"dump: expected a process with hetcomm groups, got {process}, which has none"
        )
    if owner != os.geteuid() != 0:
        raise _core.TransportError(
            f"dump: expected a process of user {os.geteuid()}, got {process} of user {owner}"
        )
    others = []
    for name in names[:_MOST_NAMES]:
        connection = _connect_in(process, name)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        found, user, _ = struct.unpack("3i", credentials)
        if (found, user) == (process, owner):
            return connection
        connection.close()
        others.append(f"process {found} of user {user}")
    raise _core.TransportError(
        f"dump: expected a socket of process {process} of user {owner}, got one with its name of "
        f"{', '.join(others)}; see what these processes do"
    )


def _connect_in(process: int, name: str) -> socket.socket:
    """A connection to the abstract socket `name` in the network namespace of the process."""
    foreign = [kind for kind in ("user", "net") if _namespace(process, kind) != _namespace(0, kind)]
    if "net" not in foreign:
        return _connected(process, name)
    # A child enters the namespaces, and hands the connection over.
    mine, of_child = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            for kind in foreign:
                _enter(process, kind)
            with _connected(process, name) as connection:
                socket.send_fds(of_child, [b"."], [connection.fileno()])
        finally:
            os._exit(0)
    of_child.close()
    with mine:
        mine.settimeout(BOUND)
        _, descriptors, _, _ = socket.recv_fds(mine, 1, 1)
    os.waitpid(child, 0)
    if not descriptors:
        raise _core.TransportError(
            f"dump: cannot enter the network namespace of process {process}; run hetcomm dump "
            "inside it, or as root"
        )
    return socket.socket(fileno=descriptors[0])


def _connected(process: int, name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(BOUND)
    try:
        connection.connect(f"\0{name}")
    except OSError as error:
        connection.close()
        raise _core.TransportError(
            f"dump: cannot connect to process {process}: {error.strerror or error}"
        ) from None
    return connection


def _namespace(process: int, kind: str) -> int:
    try:
        return os.stat(f"/proc/{process or 'self'}/ns/{kind}").st_ino
    except OSError as error:  # it ends at this moment, or belongs to another user
        raise _core.TransportError(
            f"dump: cannot read the namespaces of process {process}: {error.strerror}; name a "
            "running process of this user, or run hetcomm dump as root"
        ) from None


def _enter(process: int, kind: str) -> None:
    with open(f"/proc/{process}/ns/{kind}", encoding="utf-8") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
