"""Plants faults on the hosts of this rank, and becomes `hetcomm doctor` with the rest of argv.

argv: the faults, separated by commas; the first rank of each host plants those of its host.

    mtu: the second host's eth0 takes 1500 bytes
    slow: the drivers of eth0 report 10 times the rate that its link has
    unanswered: packets over eth1 to the second host are lost
    unroutable: the second host has no route to the third
    shm: /dev/shm of the second host is small
    descriptors: the last rank may have few
    setting: rank 1 has another HETCOMM_BRIDGE_CODEC
    unknown: rank 1 has a variable that hetcomm does not know
"""

import os
import resource
import sys
from pathlib import Path

from pyroute2 import IPRoute

from hetcomm.emulate import kernel

sys.path.append(str(Path(__file__).parents[1] / "running"))

from swallowing import swallow

MOUNT_REMOUNT = 0x20

faults = sys.argv[1].split(",")
rank, host = int(os.environ["RANK"]), int(os.environ["GROUP_RANK"])
first = os.environ["LOCAL_RANK"] == "0"
eth0 = Path(os.environ["HETCOMM_SYSFS_ROOT"]) / "class/net/eth0"

if first and host == 1 and "mtu" in faults:
    with IPRoute() as routes:
        routes.link("set", index=routes.link_lookup(ifname="eth0")[0], mtu=1500)
    (eth0 / "mtu").write_text("1500\n")  # as the kernel's own /sys has it
if first and "slow" in faults:
    (eth0 / "speed").write_text(f"{10 * int((eth0 / 'speed').read_text())}\n")
if rank == 0 and "unanswered" in faults:
    with IPRoute() as routes:
        swallow(routes, "eth1", ["198.18.1.2"])
if first and host == 1 and "unroutable" in faults:
    with IPRoute() as routes:
        routes.route("add", dst="198.18.0.3/32", type="unreachable")
if first and host == 1 and "shm" in faults:
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", MOUNT_REMOUNT, "size=4m")
if rank == int(os.environ["WORLD_SIZE"]) - 1 and "descriptors" in faults:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
if rank == 1 and "setting" in faults:
    os.environ["HETCOMM_BRIDGE_CODEC"] = "none"
if rank == 1 and "unknown" in faults:
    os.environ["HETCOMM_DETERMINISTC"] = "hunter2"
os.execv(sys.executable, [sys.executable, "-P", "-m", "hetcomm", "doctor", *sys.argv[2:]])
