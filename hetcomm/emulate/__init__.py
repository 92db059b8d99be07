"""Emulated clusters: a real multi-host job on one machine.

Every host of a cluster file becomes a set of kernel namespaces (network, mount, host name, IPC and
processes) and every NIC a veth pair, shaped by the kernel to the rate in the file. Nothing in the
job is mocked, nothing outlives it, and no privilege is needed where user namespaces are allowed.

    cluster = load("two-islands.toml")
    result = run(cluster, ["python", "train.py"], timeout=60)
    assert result.ok, result.exit_codes

A rank finds its own traffic so far in /proc/self/net/dev.
"""

from .cluster import Cluster, Host, Nic, load
from .error import ClusterError, RefusedError
from .launch import run
from .result import LinkUse, Result

__all__ = [
    "Cluster", "ClusterError", "Host", "LinkUse", "Nic", "RefusedError", "Result", "load", "run",
]  # fmt: skip
