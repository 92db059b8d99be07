"""Small models with the structure and the calls of Hugging Face's causal language models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gpt
import torch
from torch import nn

WIDTH, HEADS, VOCABULARY, TOKENS = 8, 2, gpt.VOCABULARY, gpt.TOKENS


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.mlp(x)) * positions.cos()[:, None]


class Attention(nn.Module):
    """Of HEADS heads, or as many as num_heads says then."""

    def __init__(self, out: str) -> None:
        super().__init__()
        self.num_heads, self.out = HEADS, out
        for name in ("q_proj", "k_proj", "v_proj", out):
            self.add_module(name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).view(len(x), -1, self.num_heads, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.get_submodule(self.out)(mixed.transpose(1, 2).flatten(2))


class OptBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention("out_proj")
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(x)
        return x + self.fc2(torch.relu(self.fc1(x)))


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention("o_proj")
        self.mlp = nn.Module()
        for name in ("gate_proj", "up_proj"):
            self.mlp.add_module(name, nn.Linear(WIDTH, 4 * WIDTH, bias=False))
        self.mlp.down_proj = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(x) * positions.cos()[:, None]
        wide = nn.functional.silu(self.mlp.gate_proj(x)) * self.mlp.up_proj(x)
        return x + self.mlp.down_proj(wide)


class NeoxBlock(nn.Module):
    """One matrix has query, key and value of each head together."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = nn.Module(), nn.Module()
        self.attention.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention.dense = nn.Linear(WIDTH, WIDTH)
        self.attention.num_attention_heads = HEADS
        self.mlp.dense_h_to_4h = nn.Linear(WIDTH, 4 * WIDTH)
        self.mlp.dense_4h_to_h = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], self.attention.num_attention_heads, 3 * WIDTH // HEADS)
        heads = self.attention.query_key_value(x).view(shape).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(*heads.chunk(3, -1), is_causal=True)
        attended = self.attention.dense(mixed.transpose(1, 2).flatten(2))
        return x + attended + self.mlp.dense_4h_to_h(torch.tanh(self.mlp.dense_h_to_4h(x)))


class Trunk(nn.Module):
    """A transformer with parts of the given names. It computes rotary positions for all blocks."""

    def __init__(self, names: dict[str, str], inner: int, block: type[nn.Module]) -> None:
        super().__init__()
        self.names = names
        self.add_module(names["tokens"], nn.Embedding(VOCABULARY, inner))
        if "positions" in names:
            self.add_module(names["positions"], nn.Embedding(TOKENS, WIDTH))
        if "project_in" in names:
            self.project_in = nn.Linear(inner, WIDTH)
            self.project_out = nn.Linear(WIDTH, inner)
        self.add_module(names["blocks"], nn.ModuleList(block() for _ in range(4)))
        self.add_module(names["norm"], nn.LayerNorm(WIDTH))

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool = True,
        return_dict: bool = False,
    ) -> Any:
        assert not use_cache and return_dict and (input_ids is None) != (inputs_embeds is None)
        x = (
            getattr(self, self.names["tokens"])(input_ids)
            if inputs_embeds is None
            else inputs_embeds
        )
        if "project_in" in self.names:
            x = self.project_in(x)
        positions = torch.arange(x.shape[1], device=x.device)
        if "positions" in self.names:
            x = x + getattr(self, self.names["positions"])(positions).to(x.device)
        for block in getattr(self, self.names["blocks"])[:4]:
            x = block(x, positions)
        x = getattr(self, self.names["norm"])(x)
        if "project_in" in self.names:
            x = self.project_out(x)
        return SimpleNamespace(last_hidden_state=x)


class Model(nn.Module):
    def __init__(
        self,
        path: str,
        head: str,
        names: dict[str, str],
        inner: int = WIDTH,
        block: type[nn.Module] = Block,
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=HEADS)
        torch.manual_seed(3)
        *outer, last = path.split(".")
        place: nn.Module = self
        for name in outer:
            place.add_module(name, nn.Module())
            place = place.get_submodule(name)
        place.add_module(last, Trunk(names, inner, block))
        self.add_module(head, nn.Linear(inner, VOCABULARY, bias=False))
        self.path, self.head = path, head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        trunk = self.get_submodule(self.path)
        found = trunk(input_ids=tokens, use_cache=False, return_dict=True)
        return self.get_submodule(self.head)(found.last_hidden_state)


def tied(family: str, **settings: Any) -> Model:
    """gpt2(), opt(), gpt_neox() or llama(), by its name, with one weight of embedding and head."""
    made: Model = globals()[family](**settings)
    trunk = made.get_submodule(made.path)
    made.get_submodule(made.head).weight = trunk.get_submodule(trunk.names["tokens"]).weight
    return made


def gpt2() -> Model:
    names = {"tokens": "wte", "positions": "wpe", "blocks": "h", "norm": "ln_f"}
    return Model("transformer", "lm_head", names)


def opt(block: type[nn.Module] = Block) -> Model:
    names = {
        "tokens": "embed_tokens",
        "positions": "embed_positions",
        "project_in": "project_in",
        "blocks": "layers",
        "norm": "final_layer_norm",
    }
    return Model("model.decoder", "lm_head", names, 4, block)


def gpt_neox(block: type[nn.Module] = Block) -> Model:
    names = {"tokens": "embed_in", "blocks": "layers", "norm": "final_layer_norm"}
    return Model("gpt_neox", "embed_out", names, block=block)


def llama(block: type[nn.Module] = Block) -> Model:
    names = {"tokens": "embed_tokens", "blocks": "layers", "norm": "norm"}
    return Model("model", "lm_head", names, block=block)


DIVISIBLE = {"opt": OptBlock, "gpt_neox": NeoxBlock, "llama": LlamaBlock}


def divisible(family: str, ties: bool) -> Model:
    """A model with the blocks that its family has, so that tensor ranks can divide them."""
    if ties:
        return tied(family, block=DIVISIBLE[family])
    made: Model = globals()[family](block=DIVISIBLE[family])
    return made
