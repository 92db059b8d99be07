"""Ports for servers that another process starts."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A free port, outside the range of outgoing connections if possible.

    Before the server listens, a connection of another process could take a port of that range. A
    client could even connect to itself.

    Until its server listens, a port of that range may be taken by a connection of another process,
    and a client may even connect to itself.
    """
    first, last = map(int, _EPHEMERAL.read_text().split())
    ports = [port for port in range(10_000, 65_536) if not first <= port <= last]
    ports = ports or list(range(10_000, 65_536))
    for port in random.sample(ports, min(len(ports), 1000)):
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("", port))
            return port
    raise RuntimeError("no port is free")
