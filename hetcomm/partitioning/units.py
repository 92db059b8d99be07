"""The units of a module: what is gathered, used and freed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hetcomm import _core
from hetcomm.partitioning.flat import Flat
from hetcomm.partitioning.grid import Grid
from hetcomm.partitioning.local import is_sharded

Choice = Sequence[type[nn.Module]] | Callable[[nn.Module], bool] | None
Named = tuple[nn.Parameter, tuple[str, ...]]


@dataclass(eq=False)
class Unit:
    """A module with its parameters, without those of units inside.

    inside: indices of the units inside; ran: forward() was called at least once.
    """

    index: int
    name: str
    module: nn.Module
    parameters: list[Named] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    flats: list[Flat] = field(default_factory=list)
    ran: bool = False

    def make_flats(
        self, grid: Grid, dtype: torch.dtype | None, sync: bool, ties: Mapping[int, str]
    ) -> None:
        """Moves the parameters into flat buffers, one for each dtype. Trainable and frozen ones are
        apart, and so are shards of tensor-parallel ones. A collective if `sync`: rank 0's values
        count. ties: names by ids of tied parameters."""
        kinds: dict[Any, list[Named]] = {}
        for parameter, names in self.parameters:
            tie, kind = ties.get(id(parameter), ""), "sharded" if is_sharded(parameter) else ""
            key = (parameter.dtype, parameter.requires_grad, tie, kind)
            kinds.setdefault(key, []).append((parameter, names))
        self.flats = [
            Flat(
                " ".join(filter(None, (f"{self.index} {of} {trained}", tie, kind))),
                parameters,
                grid,
                dtype,
                sync,
                tie,
            )
            for (of, trained, tie, kind), parameters in kinds.items()
        ]

    @property
    def trainable(self) -> Iterator[Flat]:
        return (flat for flat in self.flats if flat.trainable)

    @property
    def gathers(self) -> bool:
        """Whether the unit's weights are divided among ranks."""
        return any(flat.full is not flat.weights for flat in self.flats)

    def gather(self, codec: str | None) -> None:
        for flat in self.flats:
            flat.gather(codec)

    def use(self) -> None:
        for flat in self.flats:
            flat.use()

    def free(self) -> None:
        for flat in self.flats:
            flat.free()


def cut(root: nn.Module, choice: Choice) -> list[Unit]:
    """The units of a module, the root first. Each parameter belongs to one unit.

    choice: classes or a predicate of the modules that become units. None takes each child of the
    outermost nn.ModuleList and nn.Sequential. The root has the remaining parameters, and those
    that several units share. Parameters of other than floating-point dtypes stay whole.

    Raises:
        hetcomm.InvalidArgumentError: `choice` is neither, or fits no module.
    """
    modules = dict(root.named_modules())
    names = _containers(root) if choice is None else _chosen(modules, choice)
    units = [Unit(0, "", root)]
    units += [Unit(i, name, modules[name]) for i, name in enumerate(names, 1)]
    for unit in units:
        below = {id(module) for module in unit.module.modules()} - {id(unit.module)}
        unit.inside = {other.index for other in units if id(other.module) in below}
    _assign(root, units)
    return units


def _containers(root: nn.Module, prefix: str = "") -> Iterator[str]:
    is_container = isinstance(root, nn.ModuleList | nn.Sequential)
    seen = set()
    for name, child in root.named_children():
        callable_child = not isinstance(child, nn.ModuleList | nn.ModuleDict)
        if not is_container or not callable_child:
            yield from _containers(child, f"{prefix}{name}.")
        elif id(child) not in seen:
            yield prefix + name
        seen.add(id(child))


def _chosen(modules: dict[str, nn.Module], choice: Any) -> list[str]:
    if isinstance(choice, Iterable) and not isinstance(choice, str):
        classes = tuple(choice)
        if classes and all(isinstance(c, type) and issubclass(c, nn.Module) for c in classes):
            names = [name for name, module in modules.items() if isinstance(module, classes)]
            return _found([name for name in names if name], choice)
    elif callable(choice) and not isinstance(choice, type):
        return _found([name for name, module in modules.items() if name and choice(module)], choice)
    raise _core.InvalidArgumentError(
        f"units: expected a list of module classes, or a function of a module; got {choice!r}"
    )


def _found(names: list[str], choice: Any) -> list[str]:
    if not names:
        raise _core.InvalidArgumentError(
            f"units: expected at least one module that fits {choice!r}, found none; leave units out"
        )
    return names


def _assign(root: nn.Module, units: list[Unit]) -> None:
    """Gives each parameter to the innermost unit around all its places; else to the root."""
    owner: dict[int, Unit] = {}
    for unit in units:  # outer units come before inner ones
        owner.update((id(module), unit) for module in unit.module.modules())
    places: dict[int, tuple[nn.Parameter, list[str], set[int]]] = {}
    for prefix, module in root.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(prefix, recurse=False):
            _, names, owners = places.setdefault(id(parameter), (parameter, [], set()))
            names.append(name)
            owners.add(owner[id(module)].index)
    for parameter, names, owners in places.values():
        unit = units[owners.pop()] if len(owners) == 1 else units[0]
        if parameter.is_floating_point() and parameter.numel():
            unit.parameters.append((parameter, tuple(names)))
