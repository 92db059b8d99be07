"""Changes the NICs of an emulated host: network_change.py PID, a process of the host.

Prints "ready". Then each line of standard input is a change of a NIC, answered with "done":

    down eth0, up eth0             the port
    swallow eth0, deliver eth0     packets to other hosts are lost, or are not; to the hosts alone
                                   whose addresses follow, if any
    rate eth0 BITS                 of packets that leave the host, per second
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetcomm.emulate.kernel import enter_namespace

sys.path.append(str(Path(__file__).parents[1] / "running"))

from swallowing import deliver, swallow

HOSTS = range(1, 4)  # the last number of the address of each host


def enter(pid: int) -> None:
    """The network of the process. It may belong to a user namespace, which then comes first."""
    for kind in ("user", "net"):
        place = f"/proc/{pid}/ns/{kind}"
        if os.readlink(place) != os.readlink(f"/proc/self/ns/{kind}"):
            descriptor = os.open(place, os.O_RDONLY)
            enter_namespace(descriptor)
            os.close(descriptor)


def others(routes: Any, index: int) -> list[str]:
    """The addresses that other hosts may have on the network of the NIC."""
    found = routes.get_addr(index=index, family=socket.AF_INET)
    own = {address.get_attr("IFA_ADDRESS") for address in found}
    network = next(iter(own)).rpartition(".")[0]
    return [there for host in HOSTS if (there := f"{network}.{host}") not in own]


def make(routes: Any, change: str, interface: str, words: Sequence[str]) -> None:
    index = routes.link_lookup(ifname=interface)[0]
    if change in ("down", "up"):
        routes.link("set", index=index, state=change)
    elif change == "rate":
        rate = int(words[0]) // 8
        burst = max(70_000, rate // 1000)
        routes.tc("change", "tbf", index=index, rate=rate, burst=burst, limit=4 * burst)
    elif change == "swallow":
        swallow(routes, interface, words or others(routes, index))
    elif change == "deliver":
        deliver(routes, interface, words or others(routes, index))
    else:
        raise ValueError(f"an unknown change: {change}")


def main(pid: int) -> None:
    enter(pid)
    from pyroute2 import IPRoute

    with IPRoute() as routes:
        print("ready", flush=True)
        for line in sys.stdin:
            change, interface, *words = line.split()
            make(routes, change, interface, words)
            print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
