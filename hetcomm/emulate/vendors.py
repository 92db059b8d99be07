"""The emulated GPUs of a host: which vendors there are, and how ranks are pointed to them.

They are shared libraries with a vendor's runtime and collective library over host memory, found by
the variables that name a vendor's library. emulated/settings.h documents their environment.
"""

from pathlib import Path

from hetcomm._vendors import library_variables

from .cluster import GPU_VENDORS, Cluster, Host
from .error import ClusterError

_PACKAGE = Path(__file__).resolve().parents[1]


def library(vendor: str) -> Path:
    return _PACKAGE / f"libhetcomm_emulated_{vendor}.so"


def library_environment(vendor: str) -> dict[str, str]:
    """The variables that make a rank load the emulated libraries of `vendor`."""
    return dict.fromkeys(library_variables(vendor), str(library(vendor)))


def check(cluster: Cluster) -> None:
    """Raises ClusterError where a host's GPUs cannot be emulated."""
    for host in cluster.hosts:
        if host.vendor in GPU_VENDORS and not library(host.vendor).exists():
            raise ClusterError(
                f"{host.name}.vendor",
                f"the library {library(host.vendor).name} in {_PACKAGE}",
                "nothing",
                "build hetcomm, which makes it, or take another vendor",
            )


def environment(host: Host, local_rank: int) -> dict[str, str]:
    """What a rank of `host` is told about its GPU; nothing where its vendor is only a label."""
    if host.vendor not in GPU_VENDORS:
        return {}
    told = library_environment(host.vendor)
    told["HETCOMM_DEVICE"] = str(local_rank)
    told["HETCOMM_EMULATED_DEVICES"] = str(max(8, host.ranks))
    # The network that the vendors' libraries prefer comes first.
    rdma = any(nic.fabric != "ethernet" for nic in host.nics)
    told["HETCOMM_EMULATED_NETWORKS"] = "IB,Socket" if rdma else "Socket"
    if host.copy_rate is not None:
        told["HETCOMM_EMULATED_COPY_RATE"] = str(host.copy_rate // 8)
    if host.copy_latency:
        told["HETCOMM_EMULATED_LATENCY"] = str(host.copy_latency)
    if host.direct:
        told["HETCOMM_EMULATED_DIRECT"] = "1"
    if host.fault is not None:
        told["HETCOMM_EMULATED_FAULT"] = host.fault
    return told
