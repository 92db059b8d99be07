"""Rank 0 sends `count` bytes to every other rank at once, and prints the packets that its NIC
dropped."""

import sys
import threading

from meeting import RANK, meet, wait_for_all
from pyroute2 import IPRoute

(count,) = map(int, sys.argv[1:])
peers = meet()
if RANK == 0:
    senders = [threading.Thread(target=peer.sendall, args=[bytes(count)]) for peer in peers]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
else:
    left = count
    while left:
        left -= len(peers[0].recv(min(left, 1 << 16)))
wait_for_all(peers)
if RANK == 0:
    with IPRoute() as network:
        (nic,) = network.link_lookup(ifname="eth0")
        (queue,) = (queue for queue in network.get_qdiscs() if queue["index"] == nic)
        print(queue.get_attr("TCA_KIND"), queue.get_attr("TCA_STATS")["drop"])
