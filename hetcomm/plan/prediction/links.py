"""A profile of `hetcomm tune` for groups of a cluster file's ranks."""

from __future__ import annotations

from hetcomm import _core
from hetcomm.plan.refuse import refuse


def links_of(
    profile: _core.Profile, whole: _core.Topology, shared: _core.Topology, sharing: int
) -> _core.Profile:
    """The profile with the hosts of a group of ranks instead of its own.

    A cluster file says nothing of processors, so a measured host stands for each host with equal
    NICs. whole, shared: the group, with its NICs' full bandwidth and with its share. sharing: the
    groups that have equal shares.
    Raises hetcomm.InvalidArgumentError for a host with NICs that were not measured.
    """
    lines = []
    for index in range(len(whole.hosts)):
        nics = _core.profile_host(whole, index).nics
        bandwidth = next((each.bandwidth for each in profile.hosts if each.nics == nics), None)
        if bandwidth is None:
            known = sorted({each.nics for each in profile.hosts})
            refuse("links", f"a measured host with NICs {nics}", known, "run hetcomm tune there")
        host = _core.profile_host(shared, index)
        lines.append(
            f"host name={host.name} ranks={host.ranks} cores={host.cores} nics={host.nics} "
            f"bandwidth={int(bandwidth) // sharing}"
        )
    heading, *rest = str(profile).splitlines()
    kept = [line for line in rest if not line.startswith("host ")]
    return _core.Profile("\n".join([heading, *lines, *kept]), "links")
