"""Changes eth0 of an emulated host: network_change.py PID, a process of the host.

Prints "ready". Then each line of standard input is a change, answered with "done":

    down, up            the port
    swallow, deliver    packets to other hosts are lost, or are not
    rate BITS           of packets that leave the host, per second
"""

from __future__ import annotations

import os
import sys

from hetcomm.emulate.kernel import enter_namespace

HOSTS = range(1, 4)  # the last number of the address of each host
PERMANENT, NOBODY = 0x80, "02:00:00:00:ff:ff"


def enter(pid: int) -> None:
    """The network of the process. It may belong to a user namespace, which then comes first."""
    for kind in ("user", "net"):
        place = f"/proc/{pid}/ns/{kind}"
        if os.readlink(place) != os.readlink(f"/proc/self/ns/{kind}"):
            descriptor = os.open(place, os.O_RDONLY)
            enter_namespace(descriptor)
            os.close(descriptor)


def main(pid: int) -> None:
    enter(pid)
    from pyroute2 import IPRoute

    with IPRoute() as routes:
        eth0 = routes.link_lookup(ifname="eth0")[0]
        own = {address.get_attr("IFA_ADDRESS") for address in routes.get_addr(index=eth0)}
        others = [there for host in HOSTS if (there := f"198.18.0.{host}") not in own]
        print("ready", flush=True)
        for line in sys.stdin:
            change, *words = line.split()
            if change in ("down", "up"):
                routes.link("set", index=eth0, state=change)
            elif change == "rate":
                rate = int(words[0]) // 8
                burst = max(70_000, rate // 1000)
                routes.tc("change", "tbf", index=eth0, rate=rate, burst=burst, limit=4 * burst)
            for there in others if change == "swallow" else ():
                routes.neigh("replace", dst=there, lladdr=NOBODY, ifindex=eth0, state=PERMANENT)
            for there in others if change == "deliver" else ():
                routes.neigh("del", dst=there, ifindex=eth0)
            print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
