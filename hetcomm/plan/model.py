"""A transformer's size: parameters, operations and activations of each kind of layer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.plan.refuse import divisible, refuse, whole

VERSION = 1
KINDS = ("embedding", "block", "head")


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder: an embedding, equal blocks, and a head with the loss.

    Sizes are counts of elements: hidden is h, feed_forward is f, sequence is s, vocabulary is V.
    positions counts learned position embeddings; 0: none. A gated feed-forward has three matrices
    (Llama), else two. bias: all matrices and norms have biases. tied: the head uses the embedding's
    weights. dropout: masks are kept for the backward pass. flash: no s x s matrix is kept.
    weight_bytes and activation_bytes are of one element; state_bytes is of one parameter's
    optimizer states, with Adam 8, and 12 with another copy of the weights in float32.

    Raises hetcomm.InvalidArgumentError for sizes below 1, and for heads that do not divide evenly.
    """

    blocks: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    feed_forward: int
    key_value_heads: int = 0
    positions: int = 0
    gated: bool = False
    bias: bool = True
    tied: bool = False
    dropout: bool = False
    flash: bool = False
    weight_bytes: int = 4
    gradient_bytes: int = 4
    activation_bytes: int = 4
    state_bytes: int = 8

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "int":
                least = 0 if each.name in ("positions", "key_value_heads", "state_bytes") else 1
                whole(f"model.{each.name}", value, least)
        divisible("model.heads", self.hidden, self.heads)
        divisible("model.key_value_heads", self.heads, self.groups)

    @property
    def layers(self) -> int:
        """All layers: the embedding, the blocks, the head."""
        return self.blocks + 2

    @property
    def groups(self) -> int:
        """Heads of keys and values. Tensor ranks divide these, so a tensor degree divides them."""
        return self.key_value_heads or self.heads

    def kind(self, layer: int) -> str:
        """The kind of a layer. Layer 0 is the embedding, the last is the head."""
        if not 0 <= layer < self.layers:
            refuse("layer", f"0 to {self.layers - 1}", layer, "correct the layout")
        return "embedding" if layer == 0 else "head" if layer == self.layers - 1 else "block"

    def count(self, first: int, end: int) -> dict[str, int]:
        """How many layers of each kind are from `first` up to `end`."""
        self.kind(first)
        self.kind(end - 1)
        ends = {"embedding": int(first == 0), "head": int(end == self.layers)}
        found = ends | {"block": end - first - sum(ends.values())}
        return {kind: found[kind] for kind in KINDS if found[kind]}

    def _matrices(self) -> tuple[int, int, int]:
        """Elements of a block's matrices, of their biases that tensor ranks share, of the others.

        Column-parallel matrices share their biases among tensor ranks, row-parallel ones do not.
        """
        h, f = self.hidden, self.feed_forward
        kv = self.groups * (h // self.heads)
        up = f * (2 if self.gated else 1)
        matrices = h * (h + 2 * kv) + h * h + h * up + f * h
        return (matrices, h + 2 * kv + up, 2 * h) if self.bias else (matrices, 0, 0)

    def parameters(self, kind: str, tensor: int = 1) -> int:
        """Parameters of a layer on one rank of a tensor group."""
        norm = self.hidden * (2 if self.bias else 1)
        table = self.vocabulary * self.hidden // tensor
        if kind == "embedding":
            return table + self.positions * self.hidden
        if kind == "head":
            return norm + (0 if self.tied else table)
        divisible("tensor degree", self.heads, tensor)
        matrices, shared, whole_biases = self._matrices()
        return matrices // tensor + shared // tensor + whole_biases + 2 * norm

    @property
    def total(self) -> int:
        """Parameters of the model."""
        ends = self.parameters("embedding") + self.parameters("head")
        return ends + self.blocks * self.parameters("block")

    def operations(self, kind: str) -> float:
        """Floating-point operations of a layer's forward pass, of one sample; backward: twice.

        A multiplication and an addition per weight and token, and s x s scores and their
        products: 24 s h^2 + 4 s^2 h of a GPT block (Narayanan et al. 2021, arXiv 2104.04473, 5.1).
        """
        s, h = self.sequence, self.hidden
        if kind == "embedding":
            return 0.0
        if kind == "head":
            return 2.0 * s * h * self.vocabulary
        return 2.0 * s * self._matrices()[0] + 4.0 * s * s * h

    def step_operations(self, batch: int, recompute: bool = False) -> float:
        """Operations of a step of `batch` samples; with recompute each block goes forward twice."""
        blocks = self.blocks * self.operations("block")
        return batch * (blocks * (4 if recompute else 3) + 3 * self.operations("head"))

    def output_bytes(self) -> int:
        """Bytes of what a layer hands to the next, of one sample."""
        return self.sequence * self.hidden * self.activation_bytes

    def kept_bytes(self, kind: str, tensor: int = 1) -> float:
        """Bytes of activations that a layer keeps for its backward pass, of one sample.

        A block: the terms of Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), which add up
        to s h (10 + 24 / t + 5 a s / (h t)) with dropout and elements of two bytes. Masks have one
        byte. The head keeps its input, the norm's output and two matrices of s x V / t.
        """
        s, h, size = self.sequence, self.hidden, self.activation_bytes
        if kind == "embedding":
            return float(s * h * size)
        if kind == "head":
            return float(2 * s * h * size + 2 * s * self.vocabulary * size / tensor)
        mask = 1 if self.dropout else 0
        kv = self.groups / self.heads
        wide = (3 if self.gated else 2) * self.feed_forward / h
        scores = 0.0 if self.flash else self.heads * s / h * (size * (1 + mask) + mask)
        whole_part = 4 * size + 2 * mask
        return s * h * (whole_part + ((2 + 2 * kv + wide) * size + scores) / tensor)

    def working_bytes(self, kind: str, tensor: int = 1) -> float:
        """Bytes that a layer's backward pass needs beside what was kept, of one sample.

        The gradient of the largest intermediate before and after one operation: of the s x s
        scores of all heads, or of the feed-forward; of the logits in the head.
        """
        s, size = self.sequence, self.activation_bytes
        if kind == "embedding":
            return float(s * self.hidden * size)
        if kind == "head":
            return 2.0 * s * self.vocabulary * size / tensor
        scores = 0 if self.flash else self.heads * s
        return 2.0 * s * max(scores, self.feed_forward) * size / tensor

    def text(self) -> str:
        """The model as JSON, with its version."""
        return json.dumps({"hetcomm model": VERSION} | asdict(self), indent=1) + "\n"

    @staticmethod
    def load(path: str | Path, sequence: int | None = None) -> Model:
        """Reads text(), or a config.json of Hugging Face; `sequence` replaces the file's.

        Raises hetcomm.InvalidArgumentError with the file.
        """
        try:
            table = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(table, dict):
                refuse("model", "a JSON object", type(table).__name__, "correct the file")
            if "hetcomm model" not in table:
                return from_hugging_face(table, sequence)
            if (version := table.pop("hetcomm model")) != VERSION:
                refuse("model", f"version {VERSION}", version, "write the file anew")
            return Model(**(table | ({"sequence": sequence} if sequence else {})))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise _core.InvalidArgumentError(f"model {path}: {error}") from error


# For each family of Hugging Face: our field -> their key, then what holds for the whole family.
_FAMILIES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "gpt2": (
        {"blocks": "n_layer", "hidden": "n_embd", "heads": "n_head", "sequence": "n_positions"},
        {"feed_forward": "n_inner", "positions": "n_positions", "tied": True},
    ),
    "gpt_neox": (
        {"feed_forward": "intermediate_size"},
        {"tied": False},
    ),
    "opt": (
        {"feed_forward": "ffn_dim"},
        {"positions": "max_position_embeddings", "tied": True},
    ),
    "llama": (
        {"feed_forward": "intermediate_size", "key_value_heads": "num_key_value_heads"},
        {"gated": True, "bias": False, "tied": False},
    ),
}
_COMMON = {
    "blocks": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "sequence": "max_position_embeddings",
    "vocabulary": "vocab_size",
}
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_OPT_OFFSET = 2  # OPT's table of positions has two rows more


def from_hugging_face(config: dict[str, Any], sequence: int | None = None) -> Model:
    """The model of a config.json of GPT-2, GPT-NeoX, OPT or Llama.

    Raises hetcomm.InvalidArgumentError for another family, a missing key or another dtype.
    """
    family = config.get("model_type")
    if family not in _FAMILIES:
        refuse("model_type", f"one of {sorted(_FAMILIES)}", family, "write the sizes as JSON")
    keys, rules = _FAMILIES[family]
    table: dict[str, Any] = {}
    for field, key in (_COMMON | keys).items():
        table[field] = config.get(key)
    for field, rule in rules.items():
        table[field] = config.get(rule) if isinstance(rule, str) else rule
    table["tied"] = bool(config.get("tie_word_embeddings", table["tied"]))
    table["feed_forward"] = table["feed_forward"] or 4 * (table["hidden"] or 0)
    table["key_value_heads"] = table.get("key_value_heads") or 0
    if family == "opt":
        table["positions"] = (table["positions"] or 0) + _OPT_OFFSET
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "float32")
    if dtype not in _BYTES:
        refuse("torch_dtype", f"one of {', '.join(_BYTES)}", dtype, "write the sizes as JSON")
    size = _BYTES[dtype]
    # Weights and gradients of two bytes have a copy of the weights in float32 beside Adam's states.
    states = 12 if size == 2 else 2 * size
    return Model(
        **(table | ({"sequence": sequence} if sequence else {})),
        weight_bytes=size,
        gradient_bytes=size,
        activation_bytes=size,
        state_bytes=states,
    )
