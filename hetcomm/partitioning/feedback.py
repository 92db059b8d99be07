"""Residuals of error feedback in checkpoints. They belong to one layout of levels and ranks."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata

import hetcomm
from hetcomm import residuals
from hetcomm.partitioning import agreement, levels
from hetcomm.partitioning.updates import Updates


@dataclass
class Saved:
    """The residuals of one rank: one value of a checkpoint, because its sizes change.

    sums: by residuals.pack(); updates: by Updates.state().
    """

    sums: dict[str, dict[str, Any]]
    updates: list[torch.Tensor]


class LoadPlanner(DefaultLoadPlanner):
    """For torch.distributed.checkpoint.load(): checkpoints without the residuals of this layout.

    Partition.load_state_dict() then starts residuals at zero, and warns. Without this planner,
    torch raises an error for the missing key.
    """

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        wanted = list(_saved(state_dict))  # torch then replaces values of unknown types by None
        super().set_up_planner(state_dict, metadata, is_coordinator)
        known = {} if metadata is None else metadata.state_dict_metadata
        for inside, name, key in wanted:
            if key not in known:
                inside[name] = None
                del self.state_dict[key]


def _saved(state: dict[str, Any], path: str = "") -> Iterator[tuple[dict[str, Any], str, str]]:
    """The residuals in a nested state: their dictionary, name there, and key in a checkpoint."""
    for name, value in state.items():
        if isinstance(value, Saved):
            yield state, name, path + name
        elif isinstance(value, dict):
            yield from _saved(value, f"{path}{name}.")


class Residuals:
    """What lossy codecs have lost so far of this rank's sums and updates."""

    def __init__(self, sums: hetcomm.Feedback, updates: Updates, layout: Any, group: Any) -> None:
        """layout: what residuals depend on, equal on all ranks of the group. A collective of these
        ranks."""
        self._sums, self._updates, self._group = sums, updates, group
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        facts = agreement.gather(lambda: levels.facts(levels.NAMES), group)
        places = [levels.resolve([name] * len(ranks), facts) for name in ("island", "host")]
        digest = zlib.crc32(repr((layout, places, ranks)).encode())
        size = dist.get_world_size()
        self._key = f"rank {dist.get_rank()} of {size} in layout {digest:08x}"

    def state_dict(self) -> dict[str, Saved | None]:
        return {self._key: Saved(residuals.pack(self._sums), self._updates.state())}

    def load_state_dict(self, state: Mapping[str, Saved | None]) -> None:
        """Goes on as state_dict() was. Without residuals of this layout on every rank, residuals
        start at zero, and rank 0 warns. A collective of all ranks."""
        saved = state.get(self._key)
        every = all(agreement.gather(lambda: saved is not None, self._group))
        if saved is not None and every:
            residuals.unpack(self._sums, saved.sums)
            self._updates.restore(saved.updates)
            return
        self._sums.clear()
        self._updates.spread(exactly=True)
        if dist.get_rank(self._group) == 0:
            warnings.warn(
                f'feedback: expected the residuals of "{self._key}", found none in the state; '
                "residuals start at zero, so training differs from the saved one by roundings; "
                "load a checkpoint of the same levels, ranks, hosts, units, dtype and codecs",
                stacklevel=3,
            )

    def bytes(self) -> int:
        return residuals.bytes_held(self._sums) + self._updates.bytes()
