"""Breaks eth1 of the first host in one of several ways."""

from pyroute2 import IPRoute

HOSTS = ["host0", "host1", "host2"]


def break_eth1(how: str, others: list[str]) -> None:
    """ "unanswered" loses packets, "refused" has no route, "down" switches the NIC off."""
    with IPRoute() as routes:
        eth1 = routes.link_lookup(ifname="eth1")[0]
        if how == "down":
            routes.link("set", index=eth1, state="down")
        for address in (f"198.18.1.{HOSTS.index(other) + 1}" for other in others):
            if how == "unanswered":  # to a missing card
                permanent = 0x80
                nobody = "02:00:00:00:ff:ff"
                routes.neigh("replace", dst=address, lladdr=nobody, ifindex=eth1, state=permanent)
            elif how == "refused":
                routes.route("add", dst=f"{address}/32", type="unreachable")
