"""Sizes of models, beside torch's own modules and published counts."""

import json

import pytest
from torch import nn

import hetcomm
from hetcomm.plan import Model

GPT2 = {
    "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024,
    "vocab_size": 50257, "n_inner": None, "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
OPT = {
    "model_type": "opt", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
    "ffn_dim": 3072, "vocab_size": 50272, "max_position_embeddings": 2048, "torch_dtype": "float16",
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144,
    "num_attention_heads": 64, "intermediate_size": 24576, "vocab_size": 50432,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "float16",
}  # fmt: skip


def load(config: dict, tmp_path, **rest) -> Model:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return Model.load(tmp_path / "config.json", **rest)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("config", "total"),
    [(GPT2, 124_439_808), (LLAMA, 8_030_261_248), (OPT, 125_239_296), (NEOX, 20_554_567_680)],
    ids=["gpt2", "llama-3-8b", "opt-125m", "gpt-neox-20b"],
)
def test_parameters_are_those_of_the_published_models(config: dict, total: int, tmp_path) -> None:
    assert load(config, tmp_path).total == total


def test_parameters_are_those_of_torch_modules() -> None:
    h, f, v, s = 96, 320, 1000, 40
    model = Model(3, h, 4, s, v, f, positions=s)
    block = nn.TransformerEncoderLayer(h, 4, f)
    assert model.parameters("block") == count(block)
    assert model.parameters("embedding") == count(nn.Embedding(v, h)) + count(nn.Embedding(s, h))
    head = count(nn.LayerNorm(h)) + count(nn.Linear(h, v, bias=False))
    assert model.parameters("head") == head
    assert model.total == 3 * count(block) + model.parameters("embedding") + head


def test_tensor_ranks_share_matrices_and_copy_norms() -> None:
    model = Model(2, 64, 4, 32, 512, 256)
    h, f = 64, 256
    shared = 4 * h * h + 2 * h * f + 3 * h + f  # matrices, and biases of the column-parallel ones
    assert model.parameters("block", 4) == shared // 4 + 2 * h + 4 * h
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"tensor degree: .* a divisor of 4"):
        model.parameters("block", 3)


def test_operations_are_those_of_the_papers() -> None:
    b, s, layers, h, v = 512, 2048, 30, 3072, 51200
    model = Model(layers, h, 32, s, v, 4 * h)
    # Narayanan et al. 2021, with recompute; Holmes' 3.6B: 63.78 TFLOP a sample. The head's term of
    # theirs, V / (16 l h), is that of three passes.
    theirs = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert model.step_operations(b, recompute=True) == pytest.approx(theirs)
    assert theirs / b == pytest.approx(63.78e12, rel=1e-3)


def test_activations_are_those_of_the_paper() -> None:
    s, h, a = 2048, 4096, 32
    model = Model(1, h, a, s, 50000, 4 * h, dropout=True, activation_bytes=2)
    for t in (1, 4):  # Korthikanti et al. 2022, equation 2
        wanted = s * h * (10 + 24 / t + 5 * a * s / (h * t))
        assert model.kept_bytes("block", t) == pytest.approx(wanted)


def test_a_model_that_was_written_loads_as_it_was(tmp_path) -> None:
    model = load(LLAMA, tmp_path, sequence=4096)
    assert (model.sequence, model.weight_bytes, model.state_bytes, model.gated) == (
        4096,
        2,
        12,
        True,
    )
    (tmp_path / "model.json").write_text(model.text())
    assert Model.load(tmp_path / "model.json") == model


@pytest.mark.parametrize(("dtype", "sizes"), [("float64", (8, 16)), ("float16", (2, 12))])
def test_the_dtype_gives_the_bytes(dtype: str, sizes: tuple[int, int], tmp_path) -> None:
    model = load(GPT2 | {"torch_dtype": dtype}, tmp_path)
    assert (model.weight_bytes, model.state_bytes) == sizes


def test_layers_are_counted_by_kind() -> None:
    model = Model(2, 64, 4, 32, 512, 256)
    assert [model.kind(layer) for layer in range(4)] == ["embedding", "block", "block", "head"]
    with pytest.raises(hetcomm.InvalidArgumentError, match="0 to 3, got 4"):
        model.kind(4)
    for first in range(4):
        for end in range(first + 1, 5):
            kinds = [model.kind(layer) for layer in range(first, end)]
            assert model.count(first, end) == {kind: kinds.count(kind) for kind in kinds}
    with pytest.raises(hetcomm.InvalidArgumentError, match="0 to 3, got 4"):
        model.count(2, 5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bert"}, r"one of .*'gpt2'.*, got bert"),
        ({k: v for k, v in GPT2.items() if k != "n_layer"}, "model.blocks"),
        (GPT2 | {"n_head": 7}, "model.heads: expected a divisor of 768, got 7"),
        (LLAMA | {"num_key_value_heads": 6}, "model.key_value_heads: expected a divisor of 32"),
        (GPT2 | {"torch_dtype": "int8"}, r"torch_dtype: expected one of float64, .*, got int8"),
        (GPT2 | {"n_embd": 0}, "at least 1"),
        ({"hetcomm model": 2}, "version 1, got 2"),
        ({"hetcomm model": 1, "depth": 3}, "depth"),
    ],
)
def test_files_without_a_model_are_refused(config: dict, message: str, tmp_path) -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=message):
        load(config, tmp_path)
