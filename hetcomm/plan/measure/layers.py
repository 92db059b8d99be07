"""The layers that are measured: plain modules of PyTorch with a Model's sizes, or the user's."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

from hetcomm.plan.model import Model
from hetcomm.plan.refuse import refuse

DROPPED = 0.1  # share of activations; any other share takes as long
FLOATS = {2: torch.bfloat16, 4: torch.float32}
UNLIKE = 0.1  # parameters of the user's layers may differ from the model's by this share

# How a layer's tensor ranks divide it, as the `tensor` of plan.split().
Divide = Callable[[nn.Module, DeviceMesh], object]
# A model's layers of its sizes, as plan.split() takes them: embedding, blocks, head.
Make = Callable[[Model], Iterable[nn.Module]]


def dtype_of(model: Model, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations: by bytes, and float16 for GPUs without bfloat16.

    Raises hetcomm.InvalidArgumentError for other bytes, and for unlike ones.
    """
    sizes = (model.weight_bytes, model.activation_bytes)
    if sizes not in ((2, 2), (4, 4)):
        expected = "weights and activations both of 2 or both of 4 bytes"
        refuse("model", expected, f"{sizes[0]} and {sizes[1]}", "change the model's file")
    found = FLOATS[sizes[0]]
    if found is torch.bfloat16 and device.type == "cuda":
        return found if torch.cuda.is_bf16_supported(False) else torch.float16
    return found


def norm(model: Model) -> nn.Module:
    """LayerNorm, or RMSNorm in a model without biases."""
    return nn.LayerNorm(model.hidden) if model.bias else nn.RMSNorm(model.hidden, eps=1e-6)


class Embedding(nn.Module):
    """[b, s] tokens -> [b, s, hidden]."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        if 0 < model.positions < model.sequence:
            remedy = "shorten the samples with --sequence"
            refuse("model.positions", f"0, or {model.sequence} at least", model.positions, remedy)
        self.tokens = nn.Embedding(model.vocabulary, model.hidden)
        self.positions = nn.Embedding(model.positions, model.hidden) if model.positions else None
        self.dropout = nn.Dropout(DROPPED if model.dropout else 0.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        found: torch.Tensor = self.dropout(x)
        return found


class Block(nn.Module):
    """[b, s, hidden] -> [b, s, hidden]: causal attention and feed-forward, each after a norm.

    Rotary embeddings are left out. Without `flash` the s x s scores are matrices of their own.
    """

    later: torch.Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden, wide = model.hidden, model.feed_forward
        self.size = hidden // model.heads
        self.heads, self.groups = model.heads, model.groups
        self.gated = model.gated
        self.flash = model.flash
        self.norms = nn.ModuleList((norm(model), norm(model)))
        several = hidden + 2 * self.groups * self.size
        self.to_heads = nn.Linear(hidden, several, model.bias)
        self.from_heads = nn.Linear(hidden, hidden, model.bias)
        self.up = nn.Linear(hidden, wide * (2 if model.gated else 1), model.bias)
        self.down = nn.Linear(wide, hidden, model.bias)
        self.dropout = nn.Dropout(DROPPED if model.dropout else 0.0)
        later = torch.ones(model.sequence, model.sequence, dtype=torch.bool).triu(1)
        self.register_buffer("later", None if model.flash else later)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.from_heads(self._attention(self.norms[0](x))))
        wide = self.up(self.norms[1](x))
        if self.gated:
            gate, wide = wide.chunk(2, -1)
            wide = functional.silu(gate) * wide
        else:
            wide = functional.gelu(wide)
        found: torch.Tensor = x + self.dropout(self.down(wide))
        return found

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        widths = (self.heads * self.size, self.groups * self.size, self.groups * self.size)
        query, key, value = (
            each.view(b, s, -1, self.size).transpose(1, 2)
            for each in self.to_heads(x).split(widths, -1)
        )
        if self.flash:
            dropped = self.dropout.p if self.training else 0.0
            mixed = functional.scaled_dot_product_attention(
                query,
                key,
                value,
                dropout_p=dropped,
                is_causal=True,
                enable_gqa=query.shape[1] != self.groups,
            )
        else:
            mixed = self._mix(query, key, value)
        return mixed.transpose(1, 2).reshape(b, s, -1)

    def _mix(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Queries with the same keys are rows of one matrix, so keys are not repeated."""
        b, heads, s, size = query.shape
        each = heads // self.groups
        rows = query.reshape(b, self.groups, each * s, size)
        scores = rows @ key.transpose(-1, -2) * (1 / math.sqrt(size))
        scores = scores.view(b, self.groups, each, s, s).masked_fill(self.later, -math.inf)
        weights = self.dropout(scores.softmax(-1))
        mixed = weights.view(b, self.groups, each * s, s) @ value
        return mixed.view(b, heads, s, size)


class Head(nn.Module):
    """[b, s, hidden] -> [b, s, vocabulary] logits."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = norm(model)
        self.to_logits = nn.Linear(model.hidden, model.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.to_logits(self.norm(x))
        return found


def plain(model: Model) -> list[nn.Module]:
    """The layers of a model without layers of its own."""
    return [Embedding(model), *(Block(model) for _ in range(model.blocks)), Head(model)]


def divide(layer: nn.Module, mesh: DeviceMesh) -> None:
    """Divides a plain layer among tensor ranks: attention by heads, the feed-forward network by its
    inner width, embedding and head by the vocabulary. Matrices that have several parts, such as
    queries and keys, have the parts of each rank together, as in Megatron-LM."""
    styles: dict[str, ParallelStyle]
    if isinstance(layer, Embedding):
        styles = {"tokens": RowwiseParallel(input_layouts=Replicate())}
    elif isinstance(layer, Head):
        styles = {"to_logits": ColwiseParallel(output_layouts=Replicate())}
    else:
        assert isinstance(layer, Block)
        if layer.groups % mesh.size():
            remedy = "measure a divisor"
            refuse("--tensor", f"a divisor of {layer.groups} heads", mesh.size(), remedy)
        styles = {name: ColwiseParallel() for name in ("to_heads", "up")}
        styles |= {name: RowwiseParallel() for name in ("from_heads", "down")}
        layer.heads //= mesh.size()
        layer.groups //= mesh.size()
    parallelize_module(layer, mesh, styles)


def load(name: str, option: str = "--layers") -> Any:
    """The function that `FILE.py:FUNCTION` or `MODULE:FUNCTION` names.

    Raises hetcomm.InvalidArgumentError if there is none.
    """
    home, _, function = name.rpartition(":")
    try:
        if home.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(home).stem, home)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(home)
        found = getattr(module, function)
    except (ImportError, OSError, AttributeError, ValueError) as error:
        expected = "FILE.py:FUNCTION or MODULE:FUNCTION"
        refuse(option, expected, f"{name} ({error})", "correct it")
    return found


def layers_of(model: Model, kind: str, count: int, make: Make) -> list[nn.Module]:
    """So many layers of a kind. make: see Make.

    Raises hetcomm.InvalidArgumentError if `make` gives another number of layers, or layers with far
    more or fewer parameters than the model's.
    """
    found = list(make(replace(model, blocks=count)))
    if len(found) != count + 2:
        expected = f"{count + 2} layers of a model with {count} blocks"
        refuse("--layers", expected, len(found), "give the embedding, the blocks and the head")
    chosen = {"embedding": found[:1], "block": found[1:-1], "head": found[-1:]}[kind]
    own = sum(each.numel() for layer in chosen for each in layer.parameters())
    wanted = replace(model, tied=False).parameters(kind) * len(chosen)
    if abs(own - wanted) > UNLIKE * wanted:
        remedy = "correct the sizes in the model's file"
        refuse(f"--layers: parameters of {kind}", f"about {wanted}", own, remedy)
    return chosen


class Layers:
    """Equal layers in a row with a micro-batch, forward and backward as in the middle of a step.

    The layers have weights of their own, because those of one layer would stay in a cache.
    Gradients of weights exist before and add up, as in every micro-batch but the first.
    """

    def __init__(
        self,
        model: Model,
        kind: str,
        samples: int,
        device: torch.device,
        count: int = 1,
        make: Make = plain,
        mesh: DeviceMesh | None = None,
        divide: Divide = divide,
    ) -> None:
        """count: one, or so many blocks. mesh: of a tensor group, whose ranks divide the layers."""
        self.model, self.kind, self.count = model, kind, count
        self.dtype = dtype_of(model, device)
        layers = layers_of(model, kind, count, make)
        self.module = nn.Sequential(*layers).to(self.dtype)
        if mesh is not None:
            for layer in layers:
                divide(layer, mesh)
        self.module.to(device)
        shape = (samples, model.sequence)
        tokens = torch.randint(model.vocabulary, shape, device=device)
        if kind == "embedding":
            self.input = tokens
        else:
            numbers = torch.randn(*shape, model.hidden, device=device, dtype=self.dtype)
            self.input = numbers.requires_grad_()
        self.target = tokens.flatten()
        self.given = torch.randn(*shape, model.hidden, device=device, dtype=self.dtype)
        self.output = self.loss = self.input

    def forward(self) -> None:
        self.input.grad = None
        self.output = self.module(self.input)
        if isinstance(self.output, AsyncCollectiveTensor):
            self.output.trigger_wait()
        if self.kind == "head":  # torch keeps no logits, but trainers do
            self.loss = functional.cross_entropy(self.output.flatten(0, 1), self.target)

    def backward(self) -> None:
        if self.kind == "head":
            self.loss.backward()
        else:
            self.output.backward(self.given)
