"""Hosts with two NICs, of which one does not reach every host.

argv: how eth1 of the first host is broken, for which host or "everybody", and when. How:
"unanswered" loses packets, "refused" has no route, "down" switches the NIC off. When: "before" the
group is made, "topo" lets `hetcomm topo` make the group, "after" breaks it in the middle of the
job. Prints the result of a collective, the rails to other hosts and, for a broken group, the error.
"""

import os
import sys

import numpy as np
from pyroute2 import IPRoute

import hetcomm

how, whom, when = sys.argv[1:4]
hosts = ["host0", "host1", "host2"]
others = hosts[1:] if whom == "everybody" else [whom]
rank = int(os.environ["RANK"])
COUNT = 500_000


def break_eth1() -> None:
    with IPRoute() as routes:
        eth1 = routes.link_lookup(ifname="eth1")[0]
        if how == "down":
            routes.link("set", index=eth1, state="down")
        for address in (f"198.18.1.{hosts.index(other) + 1}" for other in others):
            if how == "unanswered":  # to a missing card
                permanent = 0x80
                nobody = "02:00:00:00:ff:ff"
                routes.neigh("replace", dst=address, lladdr=nobody, ifindex=eth1, state=permanent)
            elif how == "refused":
                routes.route("add", dst=f"{address}/32", type="unreachable")


if rank == 0 and when != "after":
    break_eth1()
if when == "topo":
    os.execv(sys.executable, [sys.executable, "-m", "hetcomm", "topo", "--json", "--paths"])
with hetcomm.Communicator.from_env(timeout=100.0) as communicator:
    size = communicator.size
    mine = np.full(COUNT, rank + 1, np.int32)
    assert (communicator.all_reduce(mine) == size * (size + 1) // 2).all()
    topology = communicator.topology
    rails = {
        f"{topology.rank(peer).host_name}: {len(topology.rails(rank, peer))}"
        for peer in range(size)
        if not topology.same_host(rank, peer)
    }
    paths = {communicator.path_to(peer) for peer in range(size) if peer != rank}
    bandwidths = [topology.host_bandwidth(host) for host in range(len(topology.hosts))]
    print("right", *sorted(rails), *sorted(p for p in paths if "tcp" in p), sep="; ")
    print("bandwidths", *bandwidths, f"{topology.fingerprint:016x}")
    if when == "after":
        try:
            communicator.barrier()  # the first collective has completed on all ranks
            if rank == 0:
                break_eth1()
            while True:
                communicator.all_reduce(mine)
        except hetcomm.Error as error:
            print("failed:", type(error).__name__, error, flush=True)
