"""The layers that `hetcomm profile` measures: their sizes, their results, what they keep."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from planned import MODEL

import hetcomm
from hetcomm.plan import Model
from hetcomm.plan.measure.layers import (
    Block,
    Embedding,
    Layers,
    dtype_of,
    layers_of,
    load,
    plain,
)
from hetcomm.plan.measure.memory import device_memory, kept_bytes, needed
from hetcomm.plan.measure.peaks import step_seconds
from hetcomm.plan.measure.timing import FEWEST, Clock, medians, repeat
from hetcomm.plan.model import KINDS

CPU = torch.device("cpu")
GPT = replace(MODEL, positions=MODEL.sequence)
LLAMA = replace(MODEL, key_value_heads=2, gated=True, bias=False, feed_forward=96)
NORM = 2 * 4  # bytes of a norm's mean and deviation of a token


@pytest.mark.parametrize("model", [MODEL, GPT, LLAMA, replace(LLAMA, flash=True, bias=True)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_has_the_parameters_of_the_model(kind: str, model: Model) -> None:
    (module,) = layers_of(model, kind, 1, plain)
    assert sum(each.numel() for each in module.parameters()) == model.parameters(kind)


@pytest.mark.parametrize("model", [MODEL, LLAMA])
def test_attention_with_and_without_scores_as_matrices_agrees(model: Model) -> None:
    torch.manual_seed(0)
    one, other = Block(model), Block(replace(model, flash=True))
    other.load_state_dict(
        {name: each for name, each in one.state_dict().items() if name != "later"}
    )
    x = torch.randn(2, model.sequence, model.hidden)
    torch.testing.assert_close(one(x), other(x))


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    block, x = Block(MODEL), torch.randn(1, MODEL.sequence, MODEL.hidden)
    before = block(x)
    x[:, 20] = torch.randn(MODEL.hidden)
    changed = (block(x) - before).abs().amax((0, 2)) > 1e-6
    assert not changed[:20].any() and changed[20:].all()


def test_a_block_keeps_the_bytes_of_the_formula() -> None:
    expected = MODEL.kept_bytes("block") + 2 * NORM * MODEL.sequence
    assert kept_bytes(MODEL, "block", CPU) == expected


def test_a_head_keeps_the_bytes_of_the_formula() -> None:
    targets = 8 * MODEL.sequence
    expected = MODEL.kept_bytes("head") + NORM * MODEL.sequence + targets
    assert kept_bytes(MODEL, "head", CPU) == expected


def test_an_embedding_keeps_its_tokens() -> None:
    assert kept_bytes(GPT, "embedding", CPU) == 8 * GPT.sequence


def test_flash_attention_keeps_no_scores() -> None:
    long = replace(MODEL, sequence=256)
    saved = kept_bytes(long, "block", CPU) - kept_bytes(replace(long, flash=True), "block", CPU)
    scores = 4 * long.heads * long.sequence**2
    assert saved == pytest.approx(scores, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_several_micro_batches_add_up(kind: str) -> None:
    layers = Layers(MODEL, kind, 2, CPU, count=1 if kind != "block" else 2)
    gradients = []
    for _ in range(2):
        layers.forward()
        layers.backward()
        gradients.append([each.grad.clone() for each in layers.module.parameters()])
    for once, twice in zip(*gradients, strict=True):
        torch.testing.assert_close(twice, 2 * once)
    assert kind == "embedding" or layers.input.grad is not None


def test_needs_cover_what_is_kept() -> None:
    for kind in KINDS:
        assert needed(MODEL, kind, 4) > 4 * kept_bytes(MODEL, kind, CPU)


def test_ranks_of_a_host_share_its_memory() -> None:
    whole, half = (device_memory(CPU, ranks) for ranks in (1, 2))
    assert half == pytest.approx(whole / 2, rel=0.2)


@pytest.mark.parametrize(
    ("weights", "activations", "dtype"), [(4, 4, torch.float32), (2, 2, torch.bfloat16)]
)
def test_dtypes_follow_from_bytes(weights: int, activations: int, dtype: torch.dtype) -> None:
    model = replace(MODEL, weight_bytes=weights, activation_bytes=activations)
    assert dtype_of(model, CPU) is dtype


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"of 2 or both of 4 bytes, got 4 and 2"):
        dtype_of(replace(MODEL, activation_bytes=2), CPU)
    with pytest.raises(
        hetcomm.InvalidArgumentError, match=r"positions: .* 32 .*got 31.*--sequence"
    ):
        Embedding(replace(MODEL, positions=31))
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"8 bytes of Adam's states, got 12"):
        step_seconds(replace(MODEL, state_bytes=12), Clock(CPU), torch.float32, 1e9, 0.01)


@pytest.mark.parametrize(("weights", "states"), [(4, 8), (2, 4), (2, 12)])
def test_an_optimizer_step_takes_time(weights: int, states: int) -> None:
    model = replace(MODEL, weight_bytes=weights, activation_bytes=weights, state_bytes=states)
    assert step_seconds(model, Clock(CPU), dtype_of(model, CPU), 1e9, 0.01) > 0


def test_parts_run_in_turn_and_often_enough() -> None:
    calls: list[str] = []
    parts = (lambda: calls.append("one"), lambda: calls.append("two"))
    found = repeat(Clock(CPU), parts, 0.0)
    assert len(found) == FEWEST and calls == ["one", "two"] * (1 + FEWEST)
    assert all(seconds >= 0 for each in found for seconds in each)
    assert len(medians(Clock(CPU), parts, 0.0)) == 2


def without_biases(model: Model) -> list[torch.nn.Module]:
    """A user's layers: the plain ones of a model without biases."""
    return plain(replace(model, bias=False))


def test_layers_of_the_user_are_measured() -> None:
    layers = Layers(MODEL, "block", 2, CPU, 3, without_biases)
    assert len(layers.module) == 3 and layers.module[0].up.bias is None
    layers.forward()
    layers.backward()
    assert layers.input.grad is not None
    rms_norm = kept_bytes(MODEL, "block", CPU, without_biases)  # keeps more than LayerNorm
    assert rms_norm > kept_bytes(MODEL, "block", CPU)


def test_layers_that_do_not_fit_the_sizes_are_refused() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"3 layers of a model with 1 .* got 2"):
        Layers(MODEL, "head", 1, CPU, 1, lambda model: plain(model)[1:])
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"parameters of block: .* correct the"):
        Layers(MODEL, "block", 1, CPU, 1, lambda model: plain(replace(model, feed_forward=512)))


def test_layers_come_from_a_module_or_a_file(tmp_path: Path) -> None:
    assert load("hetcomm.plan.measure.layers:plain") is plain
    (tmp_path / "mine.py").write_text("def layers(model):\n    return [model]\n")
    assert load(f"{tmp_path}/mine.py:layers")(MODEL) == [MODEL]
    for wrong in ("plain", "hetcomm.plan:nothing", "no.where:x", f"{tmp_path}/none.py:layers"):
        with pytest.raises(hetcomm.InvalidArgumentError, match=r"--layers: expected FILE.py:FUNC"):
            load(wrong)
