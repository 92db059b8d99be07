"""The chunks of a model that a rank runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hetcomm import _core
from hetcomm.plan.run import families
from hetcomm.plan.run.tensor import Tensor, apply, chosen

if TYPE_CHECKING:
    from hetcomm.plan.layout import Layout
    from hetcomm.plan.run.job import Job


class Chunk(nn.Module):
    """Consecutive layers of a list, each with its index in the list as its name.

    tied: see split().
    """

    def __init__(self, layers: Mapping[int, nn.Module], recomputed: range) -> None:
        """recomputed: the layers that keep no activations for the backward pass."""
        super().__init__()
        self.tied: dict[str, str] = {}
        self._recomputed = recomputed
        for index, layer in layers.items():
            self.add_module(str(index), layer)

    def units(self) -> list[nn.Module]:
        """The modules whose weights are used together."""
        return list(self.children())

    def forward(self, x: Any) -> Any:
        for index, layer in self._modules.items():
            assert layer is not None
            if int(index) in self._recomputed and torch.is_grad_enabled():
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x


def split(model: Any, job: Job, tensor: Tensor = None) -> list[nn.Module]:
    """The chunks of this rank, with the model's own layers in them, not copies.

    With tensor degrees above 1, a collective of all ranks.

    Layer 0 of the layout is the embedding, the last layer is the head, the others are blocks. A
    chunk takes and returns one tensor. The first takes the model's input, the last returns the
    model's output. Names of parameters are those of the whole model, so checkpoints of all stages
    fit together. The layout's recompute holds for blocks.

    Stages may share parameters, such as tied embeddings. Each of them then holds such a parameter,
    and `tied` of a chunk has its name there by its first name in the model. partition() or
    schedule() keep them equal.

    Args:
        model: a list of layers (nn.Sequential, nn.ModuleList, list), or a causal language model of
            Hugging Face transformers: GPT-2, OPT, GPT-NeoX, Llama or one of Llama's structure.
        job: of this rank.
        tensor: how the ranks of a tensor group divide layers, if the layout has tensor degrees
            above 1. A mapping has styles of torch.distributed.tensor.parallel by names of modules
            in the model; `*` in a name stands for one part between dots. A function of a layer of
            this rank and of the tensor mesh may call parallelize_module(). None takes the styles
            of the model's family.

    Raises:
        hetcomm.InvalidArgumentError: the model has another structure, or another number of layers
            than the layout, or cannot be divided among the ranks of a tensor group.
    """
    layout = job.layout
    model = list(model) if isinstance(model, nn.Sequential | nn.ModuleList | tuple) else model
    listed = isinstance(model, list)
    layers = len(model) if listed else families.layers(model)
    if layers != layout.layers:
        raise _core.InvalidArgumentError(
            f"model: expected the {layout.layers} layers of the layout (embedding, "
            f"{layout.layers - 2} blocks, head), got {layers}; plan for this model"
        )
    tensor = chosen(model, tensor, job)
    recomputed = range(1, layers - 1) if layout.recompute else range(0)
    chunks: list[Any] = [
        Chunk({index: model[index] for index in range(first, end)}, recomputed)
        if listed
        else families.chunk(model, first, end, layout.recompute)
        for first, end in layout.stages[job.stage].chunks
    ]
    shared = _shared(model, job)
    for chunk in chunks:
        chunk.tied = {
            shared[id(parameter)]: name
            for name, parameter in chunk.named_parameters()
            if id(parameter) in shared
        }
    if tensor:
        apply(chunks, tensor, job.tensor_mesh)
    return chunks


def check_chunks(chunks: Any, layout: Layout, method: str = "") -> None:
    """Raises InvalidArgumentError unless `chunks` is a list as split() returns it.

    method: the name of a method that each chunk must have.
    """
    count = len(layout.stages[0].chunks)
    listed = isinstance(chunks, Sequence | nn.ModuleList)
    fits = listed and all(
        isinstance(each, nn.Module) and (not method or hasattr(each, method)) for each in chunks
    )
    if not fits or len(chunks) != count:
        got = [type(chunk).__name__ for chunk in chunks] if listed else type(chunks).__name__
        raise _core.InvalidArgumentError(
            f"chunks: expected the list of {count} chunks of plan.split(), got {got}; pass the list"
        )


def _shared(model: Any, job: Job) -> dict[int, str]:
    """The first names of the parameters that several stages hold, by id."""
    homes: dict[int, tuple[str, set[int]]] = {}
    stages = job.layout.stages
    for chunk in range(len(stages[0].chunks)):
        for s, stage in enumerate(stages):
            for name, parameter in _named(model, *stage.chunks[chunk]):
                homes.setdefault(id(parameter), (name, set()))[1].add(s)
    return {key: name for key, (name, found) in homes.items() if len(found) > 1}


def _named(model: Any, first: int, end: int) -> list[tuple[str, nn.Parameter]]:
    if not isinstance(model, list):
        return list(families.chunk(model, first, end).named_parameters())
    return [
        (f"{index}.{name}", parameter)
        for index in range(first, end)
        for name, parameter in model[index].named_parameters()
    ]
