"""Small models with the structure and the calls of Hugging Face's causal language models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gpt
import torch
from torch import nn

WIDTH, VOCABULARY, TOKENS = 8, gpt.VOCABULARY, gpt.TOKENS


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.mlp(x)) * positions.cos()[:, None]


class Trunk(nn.Module):
    """A transformer with parts of the given names. It computes rotary positions for all blocks."""

    def __init__(self, names: dict[str, str], inner: int = WIDTH) -> None:
        super().__init__()
        self.names = names
        self.add_module(names["tokens"], nn.Embedding(VOCABULARY, inner))
        if "positions" in names:
            self.add_module(names["positions"], nn.Embedding(TOKENS, WIDTH))
        if "project_in" in names:
            self.project_in = nn.Linear(inner, WIDTH)
            self.project_out = nn.Linear(WIDTH, inner)
        self.add_module(names["blocks"], nn.ModuleList(Block() for _ in range(4)))
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
    def __init__(self, path: str, head: str, names: dict[str, str], inner: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(3)
        *outer, last = path.split(".")
        place: nn.Module = self
        for name in outer:
            place.add_module(name, nn.Module())
            place = place.get_submodule(name)
        place.add_module(last, Trunk(names, inner))
        self.add_module(head, nn.Linear(inner, VOCABULARY, bias=False))
        self.path, self.head = path, head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        trunk = self.get_submodule(self.path)
        found = trunk(input_ids=tokens, use_cache=False, return_dict=True)
        return self.get_submodule(self.head)(found.last_hidden_state)


def tied(family: str) -> Model:
    """gpt2(), opt(), gpt_neox() or llama(), by its name, with one weight of embedding and head."""
    made: Model = globals()[family]()
    trunk = made.get_submodule(made.path)
    made.get_submodule(made.head).weight = trunk.get_submodule(trunk.names["tokens"]).weight
    return made


def gpt2() -> Model:
    names = {"tokens": "wte", "positions": "wpe", "blocks": "h", "norm": "ln_f"}
    return Model("transformer", "lm_head", names)


def opt() -> Model:
    names = {
        "tokens": "embed_tokens",
        "positions": "embed_positions",
        "project_in": "project_in",
        "blocks": "layers",
        "norm": "final_layer_norm",
    }
    return Model("model.decoder", "lm_head", names, inner=4)


def gpt_neox() -> Model:
    names = {"tokens": "embed_in", "blocks": "layers", "norm": "final_layer_norm"}
    return Model("gpt_neox", "embed_out", names)


def llama() -> Model:
    return Model("model", "lm_head", {"tokens": "embed_tokens", "blocks": "layers", "norm": "norm"})
