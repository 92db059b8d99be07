"""Breaks a NIC of the first host in one of several ways."""

import sys
from pathlib import Path

from pyroute2 import IPRoute

sys.path.append(str(Path(__file__).parents[2] / "running"))

from swallowing import swallow

HOSTS = ["host0", "host1", "host2"]


def break_nic(how: str, others: list[str], number: int = 1) -> None:
    """ "unanswered" loses packets, "refused" has no route, "down" switches the NIC off."""
    name = f"eth{number}"
    with IPRoute() as routes:
        addresses = [f"198.18.{number}.{HOSTS.index(other) + 1}" for other in others]
        if how == "down":
            routes.link("set", index=routes.link_lookup(ifname=name)[0], state="down")
        elif how == "unanswered":
            swallow(routes, name, addresses)
        elif how == "refused":
            for address in addresses:
                routes.route("add", dst=f"{address}/32", type="unreachable")
