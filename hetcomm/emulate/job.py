"""One run: the command, and the environment of every rank."""

from dataclasses import dataclass

from . import vendors
from .cluster import Cluster

# In a host's private tmpfs, which ends with the host.
PRIVATE_DIRECTORY = "/dev/shm/.hetcomm-host"
SYSFS_ROOT = f"{PRIVATE_DIRECTORY}/sys"
# An emulated host lacks the machine's interfaces and ports.
OF_THIS_MACHINE = {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "HETCOMM_ZONE"}


@dataclass(frozen=True, slots=True)
class Job:
    """The input of the supervisor. Times in seconds."""

    cluster: Cluster
    command: tuple[str, ...]
    environment: dict[str, str]
    port: int
    timeout: float | None
    grace: float
    log_directory: str | None  # None: the front process gets the lines of ranks
    preload: tuple[str, ...] = ()  # modules

    def ranks_on(self, host: int) -> list[int]:
        return [rank for rank, place in enumerate(self.cluster.placement) if place == host]

    def environment_of(self, rank: int) -> dict[str, str]:
        """The caller's environment, with torchrun's variables and those of the rank's host."""
        place = self.cluster.placement[rank]
        host = self.cluster.hosts[place]
        neighbours = self.ranks_on(place)
        local_rank = neighbours.index(rank)
        zone = self.cluster.zone_label(place)
        kept = {key: value for key, value in self.environment.items() if key not in OF_THIS_MACHINE}
        return {
            "OMP_NUM_THREADS": "1",
            **kept,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.cluster.ranks),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(len(neighbours)),
            "GROUP_RANK": str(place),
            "MASTER_ADDR": self.cluster.address(self.cluster.placement[0], 0),
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": "eth0",
            "HETCOMM_SYSFS_ROOT": SYSFS_ROOT,
            "HETCOMM_EMULATED_HOST": host.name,
            "HETCOMM_EMULATED_KIND": host.kind,
            "HETCOMM_VENDOR": host.vendor,
            **({"HETCOMM_ZONE": zone} if zone else {}),
            **vendors.environment(host, local_rank),
        }

    def hosts_file(self) -> str:
        """The /etc/hosts of every host: a name has the same address on all hosts."""
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for i, host in enumerate(self.cluster.hosts):
            address = self.cluster.address(i, 0)
            lines.append(f"{address} {host.name}")
            # A dual-stack server looks up names of IPv4 peers in this form.
            lines.append(f"::ffff:{address} {host.name}")
        return "\n".join(lines) + "\n"
