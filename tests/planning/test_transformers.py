"""Real models of Hugging Face transformers, split by a layout, have the losses of the unsplit ones.

`make test-trainers` installs transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: make test-trainers")

import gpt
import staged
import torch
from ranks import Job
from staged import OVERLAPPED, layout

BLOCKS = 4
SIZES = {
    "vocab_size": gpt.VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 2,
}
CASES = {
    "two stages": layout([[3, 6]]),
    "three stages": layout([[1, 4, 6]]),
    "recompute": layout([[3, 6]], replicas=2, recompute=True, **OVERLAPPED),
}


def gpt2(**settings: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": gpt.VOCABULARY, "n_embd": 16, "n_layer": BLOCKS, "n_head": 2}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, **settings))


def llama(**settings: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(**SIZES, intermediate_size=32, num_key_value_heads=1, **settings)
    )


def gpt_neox(**settings: Any) -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, intermediate_size=32, **settings))


def opt(**settings: Any) -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    return OPTForCausalLM(
        OPTConfig(**SIZES, ffn_dim=32, word_embed_proj_dim=8, dropout=0.0, **settings)
    )


def made(family: str, tied: bool) -> Any:
    """A model with the same parameters every time."""
    torch.manual_seed(5)
    return globals()[family](tie_word_embeddings=tied)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "opt"])
def test_losses_equal_the_unsplit_model(
    job: Callable[..., Job], tmp_path: Path, family: str, tied: bool, case: str
) -> None:
    chosen, make = CASES[case], partial(made, family, tied)
    ranks = job("a" * len(chosen.ranks), backend="gloo")
    staged.check(ranks, tmp_path / "layout.json", chosen, make, chosen.overlap_optimizer)
