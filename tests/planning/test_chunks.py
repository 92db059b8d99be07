"""The chunks of all stages together are the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lookalikes
import pytest
import staged
import torch
from staged import layout
from torch import nn

import hetcomm
from hetcomm import plan
from hetcomm.plan import Layout

MODELS = {
    "GPT-2": lookalikes.gpt2,
    "OPT": lookalikes.opt,
    "GPT-NeoX": lookalikes.gpt_neox,
    "Llama": lookalikes.llama,
}
# Every layer but the embedding and the head in a stage of its own; stages of several; one stage.
CUTS = ([[1, 2, 3, 4, 5, 6]], [[3, 6]], [[2, 5, 6]], [[6]])


def place(chosen: Layout, stage: int) -> Any:
    """What split() needs of a Job, without process groups."""
    return SimpleNamespace(layout=chosen, stage=stage)


def all_chunks(model: Any, chosen: Layout) -> list[Any]:
    parts = [plan.split(model, place(chosen, s)) for s in range(len(chosen.stages))]
    return [part[c] for c in range(len(parts[0])) for part in parts]


@pytest.mark.parametrize("ends", CUTS, ids=str)
@pytest.mark.parametrize("family", MODELS)
def test_chunks_of_a_known_family_compute_the_model(family: str, ends: list[list[int]]) -> None:
    model = MODELS[family]()
    chunks = all_chunks(model, layout(ends))
    tokens = torch.randint(lookalikes.VOCABULARY, (3, lookalikes.TOKENS))
    x = tokens
    for chunk in chunks:
        x = chunk(x)
    assert torch.equal(x, model(tokens))
    joined = {name: value for chunk in chunks for name, value in chunk.state_dict().items()}
    whole = model.state_dict()
    assert joined.keys() == whole.keys()
    assert sum(len(chunk.state_dict()) for chunk in chunks) == len(whole)
    assert all(joined[name].data_ptr() == whole[name].data_ptr() for name in whole)


@pytest.mark.parametrize("kind", [nn.Sequential, nn.ModuleList, list, tuple])
def test_chunks_of_a_list_compute_the_model(kind: Any) -> None:
    model = staged.model(4)
    given = kind(model) if kind in (list, tuple, nn.ModuleList) else model
    chosen = layout([[1, 3], [4, 6]], schedule="interleaved")
    chunks = all_chunks(given, chosen)
    tokens, _ = next(staged.batches())
    x = tokens
    for chunk in chunks:
        x = chunk(x)
    assert torch.equal(x, model(tokens))
    assert [list(dict(chunk.named_children())) for chunk in chunks] == [
        ["0"], ["1", "2"], ["3"], ["4", "5"]
    ]  # fmt: skip
    assert {name for chunk in chunks for name in chunk.state_dict()} == set(model.state_dict())


def test_recomputed_blocks_keep_no_activations() -> None:
    saved = []
    tokens, _ = next(staged.batches())
    for recompute in (False, True):
        (chunk,) = plan.split(staged.model(4), place(layout([[6]], recompute=recompute), 0))
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: (sizes.append(x.numel()), x)[1], lambda x: x
        ):
            chunk(tokens)
        saved.append(sum(sizes))
    assert saved[1] < saved[0] / 4


def refusal(model: Any, chosen: Layout) -> str:
    with pytest.raises(hetcomm.InvalidArgumentError) as error:
        all_chunks(model, chosen)
    return str(error.value)


def test_an_unknown_model_is_refused() -> None:
    text = refusal(nn.Linear(3, 3), layout([[6]]))
    assert "a list of layers" in text
    assert "GPT-2, OPT, GPT-NeoX, Llama; got Linear" in text


def test_another_number_of_layers_is_refused() -> None:
    assert "the 6 layers of the layout (embedding, 4 blocks, head), got 5" in refusal(
        staged.model(3), layout([[6]])
    )
    assert "the 7 layers of the layout" in refusal(lookalikes.llama(), layout([[7]]))


def test_stages_that_share_a_parameter_know_its_first_name() -> None:
    model = staged.model(4, tied=True)
    assert [chunk.tied for chunk in all_chunks(model, layout([[2, 4, 6]]))] == [
        {"0.tokens.weight": "0.tokens.weight"}, {}, {"0.tokens.weight": "5.weight"}
    ]  # fmt: skip
    interleaved = layout([[1, 2], [3, 6]], schedule="interleaved")
    assert [chunk.tied for chunk in all_chunks(model, interleaved)][1:3] == [{}, {}]
    assert not all_chunks(model, layout([[6]]))[0].tied
    assert not any(chunk.tied for chunk in all_chunks(staged.model(4), layout([[2, 4, 6]])))


def test_tied_embeddings_of_a_known_family_stay_one_parameter() -> None:
    model = lookalikes.gpt2()
    model.lm_head.weight = model.transformer.wte.weight
    first, last = all_chunks(model, layout([[3, 6]]))
    assert last.tied == {"transformer.wte.weight": "lm_head.weight"}
    assert last.get_parameter("lm_head.weight") is first.get_parameter("transformer.wte.weight")
    (chunk,) = all_chunks(model, layout([[6]]))
    assert "lm_head.weight" in chunk.state_dict()
