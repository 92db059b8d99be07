"""One flat buffer of this rank's values of parameters, and its shards of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

from hetcomm.partitioning import collectives, local
from hetcomm.partitioning.grid import OPTIMIZER, WEIGHTS, Grid
from hetcomm.partitioning.pieces import Box

ALIGNMENT = 16  # bytes; vector units and matrix libraries are fastest on such addresses


@dataclass(frozen=True)
class Entry:
    """A parameter and its range of the buffer, in elements.

    names: more than one if several modules share the parameter. tie: see partition(), or "". box:
    the place of this rank's values in the parameter; all of it, but for a tensor-parallel one.
    """

    parameter: nn.Parameter
    names: tuple[str, ...]
    start: int
    tie: str
    box: Box

    @property
    def name(self) -> str:
        """The name of the optimizer's states, equal in all modules that hold the parameter."""
        return self.tie or self.names[0]

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole parameter."""
        return self.parameter.shape

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's values."""
        return self.box[1]

    @property
    def elements(self) -> int:
        return prod(self.local_shape)

    @property
    def division(self) -> str:
        """How tensor ranks divide the parameter."""
        return local.division(self.parameter)

    @property
    def end(self) -> int:
        return self.start + self.elements


class Flat:
    """Parameters of one dtype, all trainable or all frozen, as one padded buffer.

    Either all are shards of tensor-parallel parameters, or none is. A tied parameter has a buffer
    of its own. name: unique among the module's buffers.
    weights: this rank's part, in the dtype of computation, (length / p_weights,).
    gradient: sum of the gradients so far, (length / p_gradients,), or None.
    master: the weights that the optimizer changes, (length / p_optimizer,), at least float32. With
    equal dtypes it is a range of `weights`. Frozen parameters have none.

    Between uses, a parameter is a view of one NaN: it keeps shape and device, and holds no memory.
    Autograd saves views of the gathered buffer. So the buffer gives its memory back and gets new
    memory through one storage object.
    """

    def __init__(
        self,
        name: str,
        parameters: list[tuple[nn.Parameter, tuple[str, ...]]],
        grid: Grid,
        dtype: torch.dtype | None,
        sync: bool,
        tie: str = "",
    ) -> None:
        first = parameters[0][0]
        self.name, self.tie = name, tie
        self.grid = grid
        self.trainable = first.requires_grad
        self.sharded = local.is_sharded(first)
        self.dtype = dtype or first.dtype
        align = ALIGNMENT // min(self.dtype.itemsize, 4)
        self.entries, end = [], 0
        for parameter, names in parameters:
            self.entries.append(Entry(parameter, names, end, tie, local.box(parameter)))
            end += -(-self.entries[-1].elements // align) * align
        multiple = align * grid.parts(OPTIMIZER)
        self.length = max(-(-end // multiple), 1) * multiple
        self.used = sum(entry.elements for entry in self.entries)
        self.gradient: torch.Tensor | None = None
        self._nan = torch.full((), float("nan"), dtype=self.dtype, device=first.device)
        self._work: Any = None
        self.update: Any = None  # new weights on their way, a Spread
        self.ready = False
        self._fill(first, sync)

    def _fill(self, first: nn.Parameter, sync: bool) -> None:
        values = torch.zeros(self.length, dtype=first.dtype, device=first.device)
        for entry in self.entries:
            values[entry.start : entry.end] = local.values(entry.parameter).reshape(-1)
        if sync:
            self.grid.broadcast(values)
        start, end = self.grid.shard(self.length, WEIGHTS)
        self.weights = values[start:end].to(self.dtype, copy=True)
        self.master = self.weights[:0]
        if self.trainable:
            start, end = self.grid.shard(self.length, OPTIMIZER)
            wide = torch.promote_types(first.dtype, torch.float32)
            self.master = (
                self.own(OPTIMIZER) if wide == self.dtype else values[start:end].to(wide, copy=True)
            )
        if self.grid.weights.size == 1:
            self.full = self.weights
            self._show()
            self.ready = True
        else:
            self.full = torch.empty(self.length, dtype=self.dtype, device=first.device)
            self._hide()

    @property
    def aliased(self) -> bool:
        """The optimizer changes the weights themselves."""
        return self.master.numel() > 0 and self.master.dtype == self.dtype

    def own(self, depth: int) -> torch.Tensor:
        """This rank's part as a range of `weights`; see Grid.parts()."""
        offset, _ = self.grid.shard(self.length, WEIGHTS)
        start, end = self.grid.shard(self.length, depth)
        return self.weights[start - offset : end - offset]

    def gather(self, codec: str | None) -> None:
        """Starts to gather the weights, unless they are there or on their way."""
        if self.ready or self._work is not None:
            return
        self.arrive()
        self.full.untyped_storage().resize_(self.length * self.dtype.itemsize)
        self._work = collectives.gather(self.full, self.weights, self.grid.weights, codec)

    def use(self) -> None:
        """Waits for the weights, and shows them in the parameters."""
        self.arrive()
        if not self.ready:
            collectives.wait(self._work)
            self._work = None
            self._show()
            self.ready = True

    def free(self) -> None:
        """Gives the gathered weights' memory back."""
        if self.grid.weights.size > 1:
            collectives.wait(self._work)
            self._work = None
            if self.ready or self.full.untyped_storage().size():
                self._hide()
            self.ready = False

    def _show(self) -> None:
        for entry in self.entries:
            local.show(entry.parameter, self.full[entry.start : entry.end].view(entry.local_shape))

    def _hide(self) -> None:
        for entry in self.entries:
            local.show(entry.parameter, self._nan.expand(entry.local_shape))
        self.full.untyped_storage().resize_(0)

    def take_gradient(self) -> torch.Tensor:
        """The parameters' gradients, (length,), zero where there is none. They leave `.grad`."""
        out = torch.zeros(self.length, dtype=self.dtype, device=self.weights.device)
        for entry in self.entries:
            gradient = local.gradient(entry.parameter)
            if gradient is not None:
                out[entry.start : entry.end] = gradient.reshape(-1)
                entry.parameter.grad = None
        return out

    def arrive(self) -> None:
        """Waits for new weights on their way."""
        if self.update is not None:
            while not self.update.advance():
                pass
            self.update = None
