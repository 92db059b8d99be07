"""The optimizer's shards: float32 pieces of parameters, in the same groups as the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hetcomm import _core
from hetcomm.partitioning import local
from hetcomm.partitioning.flat import Entry, Flat
from hetcomm.partitioning.grid import OPTIMIZER, Grid


@dataclass(frozen=True)
class Shard:
    """A rank's piece of a parameter in the optimizer.

    tensor: a range of `flat.master`, 1-D. start, end: the piece's range in the flattened values of
    this rank.
    """

    tensor: nn.Parameter
    flat: Flat
    entry: Entry
    start: int
    end: int

    @property
    def name(self) -> str:
        return self.entry.name

    def cut(self, values: torch.Tensor) -> torch.Tensor:
        """The same piece of a tensor of the parameter's shape."""
        own = local.part(values.detach(), self.entry.box)
        return own.reshape(-1)[self.start : self.end]

    def range_in_master(self) -> slice:
        start, _ = self.flat.grid.shard(self.flat.length, OPTIMIZER)
        begin = self.entry.start + self.start - start
        return slice(begin, begin + self.end - self.start)


class Shards:
    """Replaces the parameters in an optimizer, in place. Schedulers keep working.

    groups: the shards of each group, on this rank. trained: all parameters of each group.
    """

    def __init__(self, optimizer: Optimizer, flats: list[Flat], grid: Grid) -> None:
        self.optimizer = optimizer
        self.grid = grid
        self.flats = flats
        found = {id(e.parameter): (flat, e) for flat in flats for e in flat.entries}
        self.groups: list[list[Shard]] = []
        self.trained: list[list[tuple[Flat, Entry]]] = []
        states = dict(optimizer.state)
        optimizer.state.clear()
        for group in optimizer.param_groups:
            known = [found[id(p)] for p in group["params"] if id(p) in found]  # not frozen or empty
            pieces = [_piece(flat, entry, grid) for flat, entry in known]
            shards = [piece for piece in pieces if piece is not None]
            for shard in shards:
                _cut_state(optimizer, states.get(shard.entry.parameter), shard)
            group["params"] = [shard.tensor for shard in shards]
            if "param_names" in group:
                group["param_names"] = [shard.name for shard in shards]
            self.groups.append(shards)
            self.trained.append(known)
        self._known = {id(shard.tensor) for shard in self}

    def __iter__(self) -> Iterator[Shard]:
        return (shard for group in self.groups for shard in group)

    def check(self) -> None:
        """Raises InvalidArgumentError if the optimizer has parameters of its own, or one was
        frozen or trained since."""
        given = [p for group in self.optimizer.param_groups for p in group["params"]]
        if {id(parameter) for parameter in given} != self._known:
            raise _core.InvalidArgumentError(
                "optimizer: expected the parameters that partition() put there; got others; call "
                "add_param_group() before partition()"
            )
        for flat in self.flats:
            for entry in flat.entries:
                if not entry.parameter.requires_grad:
                    raise _core.InvalidArgumentError(
                        f"{entry.names[0]}: expected requires_grad as at partition(), got False; "
                        "freeze parameters before partition()"
                    )


def _piece(flat: Flat, entry: Entry, grid: Grid) -> Shard | None:
    """This rank's piece of a parameter; None if other ranks hold the whole of it."""
    start, end = grid.shard(flat.length, OPTIMIZER)
    first, last = max(start, entry.start), min(end, entry.end)
    if first >= last:
        return None
    tensor = nn.Parameter(flat.master[first - start : last - start])
    return Shard(tensor, flat, entry, first - entry.start, last - entry.start)


def _cut_state(optimizer: Optimizer, state: dict[str, Any] | None, shard: Shard) -> None:
    """Keeps the piece of the state that the optimizer had before."""
    if state is None:
        return
    kept: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == shard.entry.shape:
            value = shard.cut(value).clone()
        kept[key] = value
    optimizer.state[shard.tensor] = kept


def check_membership(optimizer: Optimizer, trainable: dict[int, str], frozen: set[int]) -> None:
    """Raises InvalidArgumentError unless the optimizer has exactly the trainable parameters.

    trainable: names by id. frozen: ids of the module's other parameters, which may be there.
    """
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for key, name in trainable.items() if key not in given]
    if missing:
        raise _core.InvalidArgumentError(
            f"optimizer: expected every trainable parameter of the module, {missing[:3]} "
            f"{'are' if len(missing) > 1 else 'is'} missing; add or freeze before partition()"
        )
    if given - set(trainable) - frozen:
        raise _core.InvalidArgumentError(
            "optimizer: expected parameters of the module only, got "
            f"{len(given - set(trainable) - frozen)} others; give these an optimizer of their own"
        )
