"""Levels by name, mesh or process group, and the groups of ranks that they divide the job into."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hetcomm import _core

NAMES = ("rank", "island", "host", "cluster")

Level = str | DeviceMesh | dist.ProcessGroup
Groups = list[list[int]]
"""Disjoint groups of ranks. Ranks are sorted in each group, and groups by their first rank."""


def describe(what: str, level: Any, group: Any) -> str | tuple[int, ...]:
    """A level in a form that ranks can exchange: its name, or the ranks of this rank's group.

    Ranks are those in `group`, which is divided.

    Raises:
        hetcomm.InvalidArgumentError: `level` is no level of the group.
    """
    if isinstance(level, str) and level in NAMES:
        return level
    if isinstance(level, DeviceMesh):
        if level.ndim != 1:
            raise _core.InvalidArgumentError(
                f"{what}: expected a DeviceMesh of one dimension, got {level.ndim} dimensions; "
                f"take one of them: mesh[{(level.mesh_dim_names or ('name',))[0]!r}]"
            )
        level = level.get_group()
    if isinstance(level, dist.ProcessGroup):
        members = dist.get_process_group_ranks(group)
        ranks = sorted(dist.get_process_group_ranks(level))
        if not set(ranks) <= set(members):
            raise _core.InvalidArgumentError(
                f"{what}: expected ranks of the group {members}, got {ranks}; divide this group"
            )
        return tuple(map(members.index, ranks))
    names = ", ".join(f'"{name}"' for name in NAMES)
    raise _core.InvalidArgumentError(
        f"{what}: expected {names}, a DeviceMesh of one dimension or a ProcessGroup of this rank; "
        f"got {level!r}"
    )


def facts(described: Collection[Any]) -> str:
    """This rank's facts, as hetcomm exchanges them at set-up; empty if no level needs them."""
    if not {"island", "host"} & set(described):
        return ""
    return _core.serialize(_core.probe_device(_core.probe_rank()))


def resolve(described: Sequence[str | tuple[int, ...]], facts: Sequence[str]) -> Groups:
    """The groups of a level. described: by describe(), of each rank; facts: of each rank.

    Raises:
        hetcomm.InvalidArgumentError: the ranks' descriptions do not fit together.
    """
    name, size = described[0], len(described)
    if isinstance(name, str):
        if any(each != name for each in described):
            raise _core.InvalidArgumentError(
                f"expected one level on all ranks, got {list(described)}; name the same everywhere"
            )
        if name == "rank":
            return [[rank] for rank in range(size)]
        if name == "cluster":
            return [list(range(size))]
        topology = _core.Topology([_core.parse_rank_info(text) for text in facts])
        return _ordered(topology.islands if name == "island" else topology.hosts)
    for rank, ranks in enumerate(described):
        if isinstance(ranks, str) or rank not in ranks or any(described[r] != ranks for r in ranks):
            raise _core.InvalidArgumentError(
                f"expected groups that divide the job, got {ranks} on rank {rank}; give each rank "
                "its own group, equal on all its members"
            )
    return _ordered(set(map(tuple, described)))


def check(levels: dict[str, Groups], given: dict[str, Any]) -> None:
    """Raises InvalidArgumentError unless the levels' groups have equal sizes and are nested.

    levels: from the innermost on. given: the level that the user named, for messages.
    """
    inner: tuple[str, Groups] | None = None
    for what, groups in levels.items():
        sizes = {len(group) for group in groups}
        if len(sizes) > 1:
            raise _core.InvalidArgumentError(
                f"{what}={given[what]!r}: expected groups of equal size, got {groups}; start as "
                'many ranks in each, or take "rank", "cluster" or a DeviceMesh'
            )
        if inner is not None:
            for group in inner[1]:
                if not any(set(group) <= set(outer) for outer in groups):
                    raise _core.InvalidArgumentError(
                        f"expected each group of {inner[0]}={given[inner[0]]!r} inside one of "
                        f"{what}={given[what]!r}, but ranks {group} are in several; choose for "
                        f"{what} a level that is as wide or wider"
                    )
        inner = (what, groups)


def _ordered(groups: Any) -> Groups:
    return sorted(sorted(group) for group in groups)
