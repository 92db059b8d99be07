"""Emulated clusters: a real multi-host job on one machine.

Every host of a cluster file becomes a set of kernel namespaces: network, mount, host name, IPC and
processes. Every NIC becomes a veth pair, which the kernel shapes to the rate in the file. Nothing
is mocked. All processes end with the job. With user namespaces no privilege is needed.

    cluster = load("two-islands.toml")
    result = run(cluster, ["python", "train.py"], timeout=60)
    assert result.ok, result.exit_codes

/proc/self/net/dev has a host's traffic so far.
"""

from .cluster import Cluster, Host, Nic, Zone, load
from .error import ClusterError, RefusedError
from .launch import run
from .result import LinkUse, Result

__all__ = [
    "Cluster", "ClusterError", "Host", "LinkUse", "Nic", "RefusedError", "Result", "Zone", "load",
    "run",
]  # fmt: skip
