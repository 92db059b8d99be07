"""Packets of a NIC that never arrive, as behind a failed switch: they go to a card that nobody has.

Of emulated hosts. `routes` is an IPRoute in the network namespace of the NIC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PERMANENT = 0x80  # NUD_PERMANENT: the kernel does not ask for the card
NOBODY = "02:00:00:00:ff:ff"


def swallow(routes: Any, interface: str, addresses: Iterable[str]) -> None:
    """Packets over the interface to these addresses are lost."""
    index = routes.link_lookup(ifname=interface)[0]
    for address in addresses:
        routes.neigh("replace", dst=address, lladdr=NOBODY, ifindex=index, state=PERMANENT)


def deliver(routes: Any, interface: str, addresses: Iterable[str]) -> None:
    """Packets to these addresses arrive again."""
    index = routes.link_lookup(ifname=interface)[0]
    for address in addresses:
        routes.neigh("del", dst=address, ifindex=index)
