"""A host gets another NIC, aaa0, with a network of its own, before its ranks join.

argv: the rate of the NIC in Mbit/s, then "host=address" for each host that gets one.
"""

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np
from pyroute2 import IPRoute

import hetcomm

NAME = "aaa0"  # before eth0 among equal NICs


def add(address: str, megabits: str) -> None:
    host, _, bits = address.partition("/")
    with IPRoute() as routes:
        routes.link("add", ifname=NAME, kind="veth", peer="end0")
        for name in (NAME, "end0"):
            routes.link("set", index=routes.link_lookup(ifname=name)[0], state="up")
        index = routes.link_lookup(ifname=NAME)[0]
        routes.addr("add", index=index, address=host, prefixlen=int(bits))
    tree = Path(tempfile.mkdtemp()) / "sysfs"
    shutil.copytree(os.environ["HETCOMM_SYSFS_ROOT"], tree, symlinks=True)
    facts = tree / "class/net" / NAME
    facts.mkdir()
    for key, value in {"speed": megabits, "operstate": "up", "type": "1"}.items():
        (facts / key).write_text(value)
    os.environ["HETCOMM_SYSFS_ROOT"] = str(tree)


megabits, *addresses = sys.argv[1:]
own = dict(one.split("=") for one in addresses).get(socket.gethostname())
if own:
    add(own, megabits)
with hetcomm.Communicator.from_env(timeout=30) as communicator:
    rank, size = communicator.rank, communicator.size
    data = np.full(1 << 20, rank + 1, np.int32)
    data = communicator.all_reduce(data)
    assert (data == sum(range(1, size + 1))).all()
    peer = rank ^ 1
    for count in (10, 1 << 20):
        got = np.zeros(count, np.int32)
        work = communicator.recv(got, peer, async_op=True)
        communicator.send(np.full(count, rank, np.int32), peer)
        work.wait()
        assert (got == peer).all()
    print("right", flush=True)
