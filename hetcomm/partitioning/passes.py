"""Gathers units for the forward and the backward pass, and reduces their gradients.

The order of all collectives follows from the order in which units run. So ranks agree on it, also
if they leave different parameters unused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves, tree_map_only

from hetcomm import _core
from hetcomm.partitioning.collectives import Encoding
from hetcomm.partitioning.order import Order
from hetcomm.partitioning.reductions import Reductions
from hetcomm.partitioning.units import Unit


class Passes:
    """The hooks on a module's units."""

    def __init__(
        self,
        units: list[Unit],
        dtype: torch.dtype | None,
        codec: str | None,
        gradients: Encoding,
        prefetch: bool,
        bucket: int,
    ) -> None:
        """codec: of weights."""
        self.units = units
        self.reductions = Reductions(gradients, bucket)
        self.history = 0  # a checksum of the units in the order of their use
        self.reduced = False  # gradients came since the last forget()
        self.changed = False  # gradients came since the caller has cleared this
        self.reduces = True  # else gradients stay in the parameters
        self._held: set[Unit] = set()  # units with such gradients
        self._codec = codec
        self._dtype = dtype
        self._prefetch = prefetch
        self._order = Order()
        self._backward = -1  # number of autograd's current graph, -1 outside of backward passes
        self._active: list[Unit] = []
        for unit in units:
            self._hook(unit)

    def _hook(self, unit: Unit) -> None:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            self._before_forward(unit)
            if self._dtype is None:
                return None
            return tree_map_only(torch.Tensor, self._cast, (args, kwargs))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            self._after_forward(unit, output)

        unit.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        unit.module.register_forward_hook(after)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _note(self, event: str, unit: Unit) -> None:
        self.history = zlib.crc32(f"{event}{unit.index}".encode(), self.history)

    def _acquire(self, unit: Unit, ahead: Unit | None) -> None:
        unit.gather(self._codec)
        unit.use()
        if ahead is not None and self._prefetch:
            ahead.gather(self._codec)

    def _before_forward(self, unit: Unit) -> None:
        if self._backward >= 0 and torch._C._current_graph_task_id() < 0:
            self._after_failure()
        if unit.gathers:  # else ranks may run the unit apart, to evaluate on one rank
            self._note("forward", unit)
        unit.ran = True
        ahead = None
        if self._backward < 0:  # else the backward pass repeats a checkpointed forward pass
            self._order.note(unit)
            ahead = self._order.after(unit)
        self._acquire(unit, ahead)

    def _after_forward(self, unit: Unit, output: Any) -> None:
        if unit.index == 0 and self._backward < 0:
            self._order.end()
        keep = unit in self._active
        if torch.is_grad_enabled():
            tensors = [t for t in _tensors(output) if t.requires_grad]
            self._watch(unit, tensors)
            # The backward pass begins with these. Nothing would tell of it for hidden outputs.
            hidden = not tensors and any(unit.trainable)
            keep = keep or unit.index == 0 or self._order.is_last(unit) or hidden
        if not keep:
            unit.free()

    def _watch(self, unit: Unit, tensors: list[torch.Tensor]) -> None:
        reached = False

        def before_backward(gradient: torch.Tensor) -> None:
            nonlocal reached
            self._before_backward(unit, first=not reached)
            reached = True

        for tensor in tensors:
            tensor.register_hook(before_backward)

    def _before_backward(self, unit: Unit, first: bool) -> None:
        graph = torch._C._current_graph_task_id()
        if self._backward < 0:
            self._backward = graph
            engine: Any = Variable._execution_engine
            engine.queue_callback(self._after_backward)
        elif graph != self._backward:
            raise _core.InvalidArgumentError(
                "expected one backward pass at a time, got one inside another; give "
                "torch.utils.checkpoint.checkpoint use_reentrant=False"
            )
        if first and (unit.gathers or self.reduces):  # else ranks may have unlike micro-batches
            self._note("backward", unit)
        for other in list(self._active):
            # Autograd runs later calls first. So only units around this one are not done. An inner
            # unit with the same output has just begun. A unit with earlier calls begins again.
            apart = unit.index not in other.inside and other.index not in unit.inside
            if apart and other is not unit:
                self._retire(other)
        if unit not in self._active:
            self._active.append(unit)
        self._acquire(unit, self._order.before(unit))

    def _retire(self, unit: Unit) -> None:
        """Frees a unit after its backward pass, and starts to reduce its gradients."""
        self._active.remove(unit)
        unit.free()
        self._take(unit)

    def _take(self, unit: Unit) -> None:
        if self.reduces:
            self._reduce(unit)
        else:
            self._held.add(unit)

    def _reduce(self, unit: Unit) -> None:
        self._held.discard(unit)
        self._note("reduce", unit)
        self.reduced = self.changed = True
        for flat in unit.trainable:
            self.reductions.add(flat)

    def _after_backward(self) -> None:
        for unit in list(self._active):
            self._retire(unit)
        self._backward = -1
        for unit in self.units:
            if unit not in self._held and any(
                e.parameter.grad is not None for f in unit.trainable for e in f.entries
            ):
                self._check_ran(unit)
                self._take(unit)
        self.reductions.flush()
        self.free()

    def _check_ran(self, unit: Unit) -> None:
        """Weights that were used outside of their unit were NaN, or of the step before."""
        early = any(flat.update is not None for flat in unit.flats)
        if early or (unit.gathers and not unit.ran):
            raise _core.InvalidArgumentError(
                f"{unit.name}: expected calls of this unit, but only its parameters were used; "
                "give partition() units whose forward() is called"
            )

    def _after_failure(self) -> None:
        """An error ended the last backward pass early. Its gradients are incomplete."""
        self._active.clear()
        self._backward = -1
        self.forget()
        self.free()

    def free(self) -> None:
        """Frees all units. Called where weights change, too."""
        for unit in self.units:
            unit.free()

    def finish(self) -> None:
        """Reduces all gradients, and waits for them."""
        for unit in self.units:
            if unit in self._held:
                self._reduce(unit)
        self.reductions.finish()

    def forget(self) -> None:
        """Drops all gradients, also those that are not reduced yet."""
        self.reductions.forget()
        self._held.clear()
        self.reduced = self.changed = False
        for unit in self.units:
            for flat in unit.trainable:
                flat.gradient = None
                for entry in flat.entries:
                    entry.parameter.grad = None


def _tensors(output: Any) -> Iterable[torch.Tensor]:
    """The tensors in a module's output: in lists, tuples, dictionaries and objects' attributes."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | nn.Module):
            yield from (each for each in vars(leaf).values() if isinstance(each, torch.Tensor))
