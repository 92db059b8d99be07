"""Chunks of Hugging Face's causal language models, by structure; no need of transformers.

A chunk is the model's own transformer with fewer blocks, so masks and rotary embeddings stay the
model's business. A chunk without the embedding takes activations as `inputs_embeds`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from hetcomm import _core


@dataclass(frozen=True)
class Family:
    """Where a kind of model keeps its parts.

    trunk: the transformer, by its path; embedding: the names of its parts before the blocks;
    positions: the one of these that adds positions to the tokens' embeddings; blocks: their list;
    final: parts after the blocks; head: the projection to the vocabulary, in the model. columns and
    rows: a block's layers that tensor ranks divide by outputs and by inputs; none if torch has no
    style for the layers.
    """

    name: str
    trunk: str
    embedding: tuple[str, ...]
    positions: str
    blocks: str
    final: tuple[str, ...]
    head: str
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


FAMILIES = (
    Family("GPT-2", "transformer", ("wte", "wpe", "drop"), "wpe", "h", ("ln_f",), "lm_head"),
    Family(
        "OPT",
        "model.decoder",
        ("embed_tokens", "embed_positions", "project_in"),
        "embed_positions",
        "layers",
        ("final_layer_norm", "project_out"),
        "lm_head",
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "fc1"),
        ("self_attn.out_proj", "fc2"),
    ),
    *(
        Family(
            "GPT-NeoX",
            "gpt_neox",
            ("embed_in", "emb_dropout"),
            "",
            "layers",
            ("final_layer_norm",),
            head,
            ("attention.query_key_value", "mlp.dense_h_to_4h"),
            ("attention.dense", "mlp.dense_4h_to_h"),
        )
        for head in ("lm_head", "embed_out")  # of transformers 5, of 4
    ),
    Family(
        "Llama",
        "model",
        ("embed_tokens",),
        "",
        "layers",
        ("norm",),
        "lm_head",
        (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
        ),
        ("self_attn.o_proj", "mlp.down_proj"),
    ),
)
# What attention of transformers counts for all heads; a tensor rank has its own heads only.
COUNTS = ("num_heads", "num_attention_heads", "num_key_value_heads", "embed_dim", "hidden_size")


class _NoPositions(nn.Module):
    """Adds nothing to activations that have their positions already."""

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros(())


class ModelChunk(nn.Module):
    """Consecutive layers of a model, under the names that they have there.

    tied: see split().
    """

    def __init__(self, family: Family, trunk: nn.Module, head: nn.Module | None) -> None:
        super().__init__()
        self.tied: dict[str, str] = {}
        self._family = family
        self._takes_tokens = not isinstance(getattr(trunk, family.embedding[0]), nn.Identity)
        *outer, last = family.trunk.split(".")
        place: nn.Module = self
        for name in outer:
            place.add_module(name, nn.Module())
            place = place.get_submodule(name)
        place.add_module(last, trunk)
        if head is not None:
            self.add_module(family.head, head)

    def units(self) -> list[nn.Module]:
        """The modules whose weights are used together."""
        trunk = self.get_submodule(self._family.trunk)
        parts = dict(trunk.named_children())
        blocks = parts.pop(self._family.blocks)
        head = self._modules.get(self._family.head)
        return [*parts.values(), *blocks.children(), *([] if head is None else [head])]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        trunk = self.get_submodule(self._family.trunk)
        given = {"input_ids" if self._takes_tokens else "inputs_embeds": x}
        x = trunk(**given, use_cache=False, return_dict=True).last_hidden_state
        head = self._modules.get(self._family.head)
        return x if head is None else head(x)


def layers(model: Any) -> int:
    """The number of layers: the blocks, the embedding and the head.

    Raises hetcomm.InvalidArgumentError for a model of no known family.
    """
    family = _family(model)
    return len(getattr(model.get_submodule(family.trunk), family.blocks)) + 2


def _family(model: Any) -> Family:
    for family in FAMILIES:
        paths = [f"{family.trunk}.{name}" for name in (family.embedding[0], family.blocks)]
        if all(_has(model, path) for path in (*paths, family.head)):
            return family
    names = ", ".join(dict.fromkeys(family.name for family in FAMILIES))
    raise _core.InvalidArgumentError(
        f"model: expected a list of layers (nn.Sequential, nn.ModuleList, list) or a causal "
        f"language model of the structure of {names}; got {type(model).__name__}; give a list of "
        "its embedding, blocks and head"
    )


def _has(model: Any, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True


def chunk(model: nn.Module, first: int, end: int, recompute: bool = False) -> ModelChunk:
    """The layers from `first` to before `end`, with the model's own parts in them."""
    family = _family(model)
    whole = model.get_submodule(family.trunk)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    blocks = list(getattr(whole, family.blocks))
    last = len(blocks) + 1
    trunk = copy.copy(whole)
    trunk._modules = dict(whole._modules)
    removed = family.embedding if first > 0 else ()
    removed += family.final if end <= last else ()
    for name in removed:
        if trunk._modules.get(name) is not None:
            trunk._modules[name] = _NoPositions() if name == family.positions else nn.Identity()
    kept = nn.ModuleList()
    for index in range(max(first, 1), min(end, last)):
        kept.add_module(str(index - 1), blocks[index - 1])
    trunk._modules[family.blocks] = kept
    return ModelChunk(family, trunk, model.get_submodule(family.head) if end > last else None)


def tensor_plan(model: Any, degrees: Iterable[int]) -> Callable[[nn.Module, DeviceMesh], None]:
    """Divides a layer of the model among tensor ranks, as Megatron-LM does.

    Embedding and head are divided by the vocabulary, attention by heads, and the feed-forward
    network by its inner width.

    degrees: of all groups. Raises hetcomm.InvalidArgumentError for a family whose layers fit none
    of torch's styles, or heads that a degree does not divide.
    """
    family = _family(model)
    blocks = getattr(model.get_submodule(family.trunk), family.blocks)
    missing = [name for name in family.columns + family.rows if not _has(blocks[0], name)]
    if missing or not family.columns:
        what = f"a block without {missing[0]}" if missing else f"{family.name}'s Conv1D"
        raise _core.InvalidArgumentError(
            f"tensor: expected layers that torch's styles fit, got {what}; pass a function of a "
            "layer and the tensor mesh, or plan with tensor degree 1"
        )
    config = getattr(model, "config", None)
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None) or 0
        if wrong := [degree for degree in degrees if heads % degree]:
            raise _core.InvalidArgumentError(
                f"layout: expected tensor degrees that divide the model's {name} {heads}, got "
                f"{wrong}; plan with divisors"
            )
    embedding = model.get_submodule(f"{family.trunk}.{family.embedding[0]}")
    ends = {
        id(embedding): RowwiseParallel(input_layouts=Replicate()),
        id(model.get_submodule(family.head)): ColwiseParallel(output_layouts=Replicate()),
    }
    whole = {id(block) for block in blocks}

    def divide(layer: nn.Module, mesh: DeviceMesh) -> None:
        if id(layer) in ends:
            parallelize_module(layer, mesh, ends[id(layer)])
        elif id(layer) in whole:
            styles: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in family.columns}
            styles |= {name: RowwiseParallel() for name in family.rows}
            parallelize_module(layer, mesh, styles)
            attention = layer.get_submodule(family.columns[0].rpartition(".")[0])
            for name in COUNTS:
                if hasattr(attention, name):
                    setattr(attention, name, getattr(attention, name) // mesh.size())

    return divide
