"""State dictionaries of a partition, in the layout of torch.distributed.checkpoint.state_dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hetcomm import _core
from hetcomm.partitioning import local
from hetcomm.partitioning.flat import Flat
from hetcomm.partitioning.grid import OPTIMIZER, WEIGHTS
from hetcomm.partitioning.pieces import Piece
from hetcomm.partitioning.shards import Shard, Shards
from hetcomm.partitioning.trial import fresh_state
from hetcomm.partitioning.units import Unit


def model_state(module: nn.Module, units: list[Unit]) -> dict[str, Any]:
    """A Piece of each partitioned parameter by each of its names, and whole other tensors."""
    state: dict[str, Any] = dict(_unpartitioned(module, units))
    for unit in units:
        for flat in unit.flats:
            for names, piece in pieces(flat):
                state.update(dict.fromkeys(names, piece))
    return state


def _unpartitioned(module: nn.Module, units: list[Unit]) -> Iterator[tuple[str, torch.Tensor]]:
    """Persistent buffers, and parameters that stay whole."""
    owned = {id(parameter) for unit in units for parameter, _ in unit.parameters}
    for prefix, each in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for name, parameter in each._parameters.items():
            if parameter is not None and id(parameter) not in owned:
                yield dot + name, parameter.detach()
        for name, buffer in each._buffers.items():
            if buffer is not None and name not in each._non_persistent_buffers_set:
                yield dot + name, buffer


def pieces(flat: Flat) -> Iterator[tuple[tuple[str, ...], Piece]]:
    """This rank's piece of each parameter: of the master weights; of the weights if frozen."""
    values = flat.master if flat.trainable else flat.weights
    start, end = flat.grid.shard(flat.length, OPTIMIZER if flat.trainable else WEIGHTS)
    for entry in flat.entries:
        first = min(max(start, entry.start), entry.end)
        last = max(min(end, entry.end), first)
        own = values[first - start : last - start] if first < last else values[:0]
        yield entry.names, Piece(own, first - entry.start, entry.shape, entry.box)


def optimizer_state(optimizer: Optimizer, shards: Shards) -> dict[str, Any]:
    """The states by the parameters' names, and the groups' settings.

    Before the first step, states are those of a fresh optimizer. load() puts them in.
    """
    states = {}
    for group, settings in zip(shards.groups, optimizer.param_groups, strict=True):
        for shard in group:
            state = optimizer.state.get(shard.tensor)
            if state is None:
                like = shard.tensor
                state = fresh_state(optimizer, settings, like.numel(), like.dtype, like.device)
            states[shard.name] = {key: _wrap(value, shard) for key, value in state.items()}
    groups = [
        {
            **{k: v for k, v in group.items() if k not in ("params", "param_names")},
            "params": [entry.name for _, entry in trained],
        }
        for group, trained in zip(optimizer.param_groups, shards.trained, strict=True)
    ]
    return {"state": states, "param_groups": groups}


def _wrap(value: Any, shard: Shard) -> Any:
    if isinstance(value, torch.Tensor) and value.shape == shard.tensor.shape and value.ndim:
        return Piece(value, shard.start, shard.entry.shape, shard.entry.box)
    return value


def check(state: Mapping[str, Any]) -> None:
    """Refuses what has no weights, such as a plain module's state."""
    if "model" not in state:
        raise _core.InvalidArgumentError(
            'state_dict: expected a dictionary with "model" and perhaps "optimizer", got the keys '
            f'{list(state)[:3]}; pass {{"model": state}}'
        )


def load_model(module: nn.Module, units: list[Unit], state: dict[str, Any]) -> None:
    """Copies weights in: pieces of model_state(), or whole tensors."""
    own = model_state(module, units)
    if set(own) != set(state):
        missing, extra = sorted(set(own) - set(state)), sorted(set(state) - set(own))
        raise _core.InvalidArgumentError(
            f"model: expected the module's names, missing are {missing[:3]}, unknown are "
            f"{extra[:3]}; give every rank a state of the same module"
        )
    with torch.no_grad():
        for name, target in own.items():
            _copy(name, target, state[name])


def _copy(name: str, target: torch.Tensor, source: torch.Tensor) -> None:
    if target.shape != source.shape:
        raise _core.InvalidArgumentError(
            f"{name}: expected shape {tuple(target.shape)}, got {tuple(source.shape)}"
        )
    if not isinstance(target, Piece):
        target.copy_(source)
    elif not isinstance(source, Piece):
        end = target.start + len(target.own)
        own = local.part(source, target.box)
        target.own.copy_(own.reshape(-1)[target.start : end])
    elif (source.start, len(source.own)) == (target.start, len(target.own)):
        target.own.copy_(source.own)
    else:
        raise _core.InvalidArgumentError(
            f"{name}: expected a piece of this partition, or a whole tensor; got another "
            "partition's piece; load it by torch.distributed.checkpoint"
        )


def load_optimizer(
    module: nn.Module, optimizer: Optimizer, shards: Shards, state: dict[str, Any]
) -> None:
    """Puts states in: those of optimizer_state(), or whole tensors by the parameters' names.

    A shard without a state there has none afterwards.
    """
    groups = state["param_groups"]
    if len(groups) != len(shards.groups):
        raise _core.InvalidArgumentError(
            f"optimizer: expected {len(shards.groups)} parameter groups, got {len(groups)}; build "
            "the optimizer as the saved one"
        )
    states = state["state"]
    _check_names(module, shards, states)
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update({k: v for k, v in saved.items() if k not in ("params", "param_names")})
    for shard in shards:
        if shard.name in states:
            values = states[shard.name].items()
            optimizer.state[shard.tensor] = {k: _unwrap(k, v, shard) for k, v in values}
        else:
            optimizer.state.pop(shard.tensor, None)


def _check_names(module: nn.Module, shards: Shards, states: dict[str, dict[str, Any]]) -> None:
    """Refuses states of other parameters, and pieces without those of all shards.

    Whole states may lack a parameter that never had a gradient. They may have those of parameters
    without a shard: frozen or empty ones.
    """
    known = {entry.name for trained in shards.trained for _, entry in trained}
    known.update(n for n, p in module.named_parameters() if not p.requires_grad or not p.numel())
    unknown = [name for name in states if name not in known]
    missing = [shard.name for shard in shards if shard.name not in states]
    pieces = any(isinstance(value, Piece) for each in states.values() for value in each.values())
    if unknown or (missing and pieces):
        raise _core.InvalidArgumentError(
            f"optimizer: expected states by the parameters' names, missing are {missing[:3]}, "
            f"unknown are {unknown[:3]}; use Partition.state_dict(), or "
            "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict()"
        )


def _unwrap(key: str, value: Any, shard: Shard) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    of_parameter = value.shape == shard.entry.shape
    if not of_parameter and (isinstance(value, Piece) or value.numel() != 1):
        raise _core.InvalidArgumentError(
            f"{shard.name}: expected {key} of shape {tuple(shard.entry.shape)}, or one element, "
            f"got {tuple(value.shape)}; load a state of the same module"
        )
    if not isinstance(value, Piece):
        return shard.cut(value).clone() if of_parameter else value.clone()
    if (value.start, len(value.own)) != (shard.start, shard.end - shard.start):
        raise _core.InvalidArgumentError(
            f"{shard.name}: expected a state of this partition, got one of another; load it by "
            "torch.distributed.checkpoint"
        )
    return value.own
