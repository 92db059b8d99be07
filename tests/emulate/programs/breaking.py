"""Breaks eth1 of the first host in one of several ways."""

import sys
from pathlib import Path

from pyroute2 import IPRoute

sys.path.append(str(Path(__file__).parents[2] / "running"))

from swallowing import swallow

HOSTS = ["host0", "host1", "host2"]


def break_eth1(how: str, others: list[str]) -> None:
    """ "unanswered" loses packets, "refused" has no route, "down" switches the NIC off."""
    with IPRoute() as routes:
        addresses = [f"198.18.1.{HOSTS.index(other) + 1}" for other in others]
        if how == "down":
            routes.link("set", index=routes.link_lookup(ifname="eth1")[0], state="down")
        elif how == "unanswered":
            swallow(routes, "eth1", addresses)
        elif how == "refused":
            for address in addresses:
                routes.route("add", dst=f"{address}/32", type="unreachable")
