"""The trainer: its text and its model; every layout computes the same training."""

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launching import Launch

from hetcomm.demo import trainer


def losses(lines: list[dict[str, float]]) -> list[float]:
    return [line["loss"] for line in lines[:-1]]


def test_text_is_the_same_in_another_process() -> None:
    text = trainer.standard_library()
    program = (
        f"import sys; sys.path.insert(0, {str(Path(trainer.__file__).parent)!r})\n"
        "import hashlib, trainer\n"
        "print(hashlib.sha256(trainer.standard_library().numpy().tobytes()).hexdigest())"
    )
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240
    )
    assert there.stdout.strip() == hashlib.sha256(text.numpy().tobytes()).hexdigest()
    assert text.dtype == torch.uint8
    assert b"def " in text.numpy().tobytes()


def test_text_without_sources_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trainer.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="use a Python that is installed with its sources"):
        trainer.standard_library()


def test_samples_depend_on_seed_and_step_only() -> None:
    text = torch.arange(256, dtype=torch.uint8).repeat(4)
    first = trainer.sample(text, sequences=8, context=16, seed=3, step=5)
    torch.manual_seed(99)
    again = trainer.sample(text, sequences=8, context=16, seed=3, step=5)
    assert first.shape == (8, 17)
    assert torch.equal(first, again)
    assert torch.equal(first[:, 1:] % 256, (first[:, :-1] + 1) % 256)
    for seed, step in ((3, 6), (4, 5)):
        assert not torch.equal(first, trainer.sample(text, 8, 16, seed, step))


def test_samples_reach_both_ends_of_the_text() -> None:
    text = torch.arange(6, dtype=torch.uint8)
    windows = trainer.sample(text, sequences=200, context=4, seed=0, step=0)
    assert set(windows[:, 0].tolist()) == {0, 1}
    assert windows.max() == 5


def test_a_model_gives_logits_and_its_slice_activations() -> None:
    model = trainer.build_model(width=288, depth=4, heads=6, context=64, seed=0)
    tokens = torch.zeros(2, 10, dtype=torch.int64)
    assert model(tokens).shape == (2, 10, 256)
    assert model[:3](tokens).shape == (2, 10, 288)
    assert 3e6 < sum(parameter.numel() for parameter in model.parameters()) < 5e6


def test_model_sees_only_the_past() -> None:
    model = trainer.build_model(width=32, depth=2, heads=2, context=16, seed=0)
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 9] += 1
    same = model(tokens).isclose(model(changed)).all(dim=2)[0]
    assert same[:9].all()
    assert not same[9:].any()


def test_the_seed_alone_decides_the_weights() -> None:
    first, again, other = (
        torch.nn.utils.parameters_to_vector(trainer.build_model(32, 2, 2, 16, seed).parameters())
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_layout_computes_the_same_training(launch: Launch) -> None:
    alone = launch(1, "ddp")
    parallel = launch(4, "ddp")
    pipeline = launch(4, "pipeline")
    assert losses(alone)[0] != losses(alone)[-1]
    assert losses(parallel) == pytest.approx(losses(alone), abs=1e-5)
    assert losses(pipeline) == pytest.approx(losses(alone), abs=1e-5)
    for lines in (alone, parallel, pipeline):
        assert [line["step"] for line in lines[:-1]] == [0, 1, 2, 3]
        assert len(lines[-1]["network_bytes"]) == 4
        assert lines[-1]["parameters"] == alone[-1]["parameters"]


@pytest.mark.parametrize(
    ("layout", "batch", "ranks", "message"),
    [
        ("ddp", 18, 4, "expected --batch to be a multiple of 4"),
        ("pipeline", 12, 4, "expected --batch to be a multiple of 8"),
        ("pipeline", 12, 3, "an even number of ranks, got 3"),
    ],
)
def test_uneven_shares_are_rejected(layout: str, batch: int, ranks: int, message: str) -> None:
    arguments = argparse.Namespace(layout=layout, plan=None, batch=batch, micro_batches=4, codec="")
    with pytest.raises(ValueError, match=message):
        trainer.check_arguments(arguments, ranks)


def test_a_codec_is_for_data_parallel() -> None:
    arguments = argparse.Namespace(
        layout="pipeline", plan=None, batch=8, micro_batches=4, codec="int8"
    )
    with pytest.raises(ValueError, match="--codec is for the layout ddp, got pipeline"):
        trainer.check_arguments(arguments, 4)


def test_codecs_change_the_training_little(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, lossless, int8 = (
        losses(launch(2, "ddp", "--backend", "hetcomm", "--width", "64", "--codec", codec))
        for codec in ("", "lossless", "int8")
    )
    assert lossless == plain
    assert int8 != plain and int8 == pytest.approx(plain, abs=0.05)
