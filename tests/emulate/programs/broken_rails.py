"""Hosts with two NICs, of which one does not reach every host.

argv: how eth1 of the first host is broken (see breaking.py), for which host or "everybody", and
when. "before": before the group is made, "topo": so that `hetcomm topo` makes the group, "twice":
in the middle of the job, and eth0 after the plans leave out eth1. Prints the result of a
collective, the rails to other hosts and, for a broken group, the error.
"""

import os
import sys

import numpy as np
from breaking import HOSTS, break_nic

import hetcomm

how, whom, when = sys.argv[1:4]
others = HOSTS[1:] if whom == "everybody" else [whom]
rank = int(os.environ["RANK"])
COUNT = 500_000

if rank == 0 and when != "twice":
    break_nic(how, others)
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
    if when == "twice":
        try:
            communicator.barrier()  # the first collective has completed on all ranks
            fingerprint = communicator.topology.fingerprint
            if rank == 0:
                break_nic(how, others)
            while communicator.topology.fingerprint == fingerprint:
                communicator.all_reduce(mine)
            if rank == 0:
                break_nic(how, others, 0)
            while True:
                communicator.all_reduce(mine)
        except hetcomm.Error as error:
            print("failed:", type(error).__name__, error, flush=True)
