"""Profiles in which the network between the hosts of this machine's ranks is slow."""

from hetcomm import _core

HEADING = "hetcomm profile 1"
MEMORY = "memory bandwidth=20000000000 step=300"
CURVE = "16=2000 1048576=50000"


def profile(topology: _core.Topology, bandwidth: int) -> str:
    """The text of a profile of these hosts. bandwidth: bytes per second of every host."""
    lines = [HEADING]
    sizes = set()
    for host in range(len(topology.hosts)):
        facts = _core.profile_host(topology, host)
        lines.append(
            f"host name={facts.name} ranks={facts.ranks} cores={facts.cores} nics={facts.nics} "
            f"bandwidth={bandwidth}"
        )
        sizes.add((facts.ranks, facts.cores))
    for ranks, cores in sorted(sizes):
        if ranks > 1:
            lines.append(f"island members={ranks} ranks={ranks} cores={cores}")
            lines += [f"{each.name} {CURVE}" for each in _core.profiled_collectives()]
    return "\n".join([*lines, MEMORY])
