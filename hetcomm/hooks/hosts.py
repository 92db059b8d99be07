"""The ranks of a host, for ZeRO++'s secondary shard of the parameters (hpZ)."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hetcomm import _core


def ranks_of_host(mesh: DeviceMesh) -> int:
    """The value of fully_shard's reshard_after_forward that keeps parameters within the host.

        fully_shard(block, mesh=mesh, reshard_after_forward=hetcomm.hooks.ranks_of_host(mesh))

    After the forward pass each host then has all parameters, and the backward pass gathers them
    without other hosts. All ranks of the mesh call this together.

    Args:
        mesh: as fully_shard takes it; the last dimension shards.

    Raises:
        hetcomm.InvalidArgumentError: the ranks of a host do not stand together in the mesh, hosts
            have different numbers of ranks, or a host has one rank.
    """
    hosts = _hosts(mesh)
    order = [hosts[rank] for rank in mesh.mesh.flatten().tolist()]
    count = order.count(order[0])
    if order != [host for host in dict.fromkeys(order) for _ in range(count)]:
        raise _core.InvalidArgumentError(
            "mesh: expected the ranks of each host next to each other, as many on every host; got "
            f"{_described(order)}; start the ranks in block order, as torchrun does"
        )
    shards = mesh.size(mesh.ndim - 1)
    count = min(count, shards)
    if count == 1 or shards % count:
        raise _core.InvalidArgumentError(
            f"mesh: expected shards over several ranks of each host, got {shards} shards over "
            f"{_described(order)}; pass fully_shard reshard_after_forward=True instead"
        )
    return count


def _hosts(mesh: DeviceMesh) -> dict[int, str]:
    """The host of each rank of the mesh."""
    known = {dist.get_rank(): _core.host_identity()}
    for dimension in range(mesh.ndim):
        group = mesh.get_group(dimension)
        found: list[dict[int, str]] = [{} for _ in range(group.size())]
        dist.all_gather_object(found, known, group=group)
        known = {rank: host for part in found for rank, host in part.items()}
    return known


def _described(order: list[str]) -> str:
    """Ranks by host, as "host 0, host 0, host 1"."""
    names = list(dict.fromkeys(order))
    return ", ".join(f"host {names.index(host)}" for host in order)
