"""The emulated GPUs of a host, and the variables by which ranks find them.

An emulated library has a vendor's runtime and collective functions over host memory.
emulated/settings.h documents its variables.
"""

from pathlib import Path

from hetcomm._vendors import library_variables

from .cluster import GPU_VENDORS, Cluster, Host
from .error import ClusterError

_PACKAGE = Path(__file__).parents[1]  # not resolved: a sanitized build links here


def library(vendor: str) -> Path:
    return _PACKAGE / f"libhetcomm_emulated_{vendor}.so"


def library_environment(vendor: str) -> dict[str, str]:
    """The variables that make a rank load the emulated libraries of `vendor`."""
    return dict.fromkeys(library_variables(vendor), str(library(vendor)))


def check(cluster: Cluster) -> None:
    """Raises ClusterError if the library of a host's GPUs is missing."""
    for host in cluster.hosts:
        if host.vendor in GPU_VENDORS and not library(host.vendor).exists():
            raise ClusterError(
                f"{host.name}.vendor",
                f"the library {library(host.vendor).name} in {_PACKAGE}",
                "nothing",
                "build hetcomm, which makes it, or take another vendor",
            )


def environment(host: Host, local_rank: int) -> dict[str, str]:
    """A rank's variables for its GPU; none if the vendor is only a label."""
    if host.vendor not in GPU_VENDORS:
        return {}
    variables = library_environment(host.vendor)
    variables["HETCOMM_DEVICE"] = str(local_rank)
    variables["HETCOMM_EMULATED_DEVICES"] = str(max(8, host.ranks))
    # In the order in which the vendors' libraries prefer networks.
    rdma = any(nic.fabric != "ethernet" for nic in host.nics)
    variables["HETCOMM_EMULATED_NETWORKS"] = "IB,Socket" if rdma else "Socket"
    if host.copy_rate is not None:
        variables["HETCOMM_EMULATED_COPY_RATE"] = str(host.copy_rate // 8)
    if host.copy_latency:
        variables["HETCOMM_EMULATED_LATENCY"] = str(host.copy_latency)
    if host.direct:
        variables["HETCOMM_EMULATED_DIRECT"] = "1"
    if host.fault is not None:
        variables["HETCOMM_EMULATED_FAULT"] = host.fault
    return variables
