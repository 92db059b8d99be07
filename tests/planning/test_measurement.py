"""The measurements of a device: times that cannot be, errors of scaling, the profile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from planned import MODEL

import hetcomm
from hetcomm.plan import Model
from hetcomm.plan.measure import device, measurement
from hetcomm.plan.measure.layers import Layers
from hetcomm.plan.measure.measurement import ATTEMPTS, Case, Effort, Measurement, half_of
from hetcomm.plan.model import KINDS
from hetcomm.plan.profile import Profile

PEAK, BANDWIDTH, STEP = 1e12, 1e11, 1e-9
Seconds = Callable[[Layers, int], float]


def work(layers: Layers) -> float:
    """Seconds at a hundredth of the peak, and a millisecond."""
    samples = layers.input.shape[0]
    return layers.model.operations(layers.kind) * samples / PEAK * 100 + samples * 1e-3


def measured(
    monkeypatch: pytest.MonkeyPatch, seconds: Seconds, model: Model = MODEL
) -> tuple[Profile, Measurement]:
    """The profile of a device whose clock shows these seconds forward, by call, and twice as many
    backward."""
    calls: dict[Case, int] = {}

    def medians(clock: object, parts: tuple, bound: float) -> tuple[float, ...]:
        layers = parts[0].__self__
        case = Case(layers.kind, layers.input.shape[0], layers.model != model)
        calls[case] = calls.get(case, 0) + 1
        each = seconds(layers, calls[case])
        return layers.count * each, layers.count * 2 * each

    monkeypatch.setattr(measurement, "medians", medians)
    monkeypatch.setattr(measurement, "peak_operations", lambda *rest: PEAK)
    monkeypatch.setattr(measurement, "memory_bandwidth", lambda *rest: BANDWIDTH)
    monkeypatch.setattr(measurement, "step_seconds", lambda *rest: STEP)
    mine = Measurement(model, torch.device("cpu"), Effort((1, 2), 0.01))
    for _, action in mine.steps():
        action()
    return mine.profile("mine"), mine


def test_the_profile_holds_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    profile, mine = measured(monkeypatch, lambda layers, call: work(layers))
    assert {(row.layer, row.micro_batch) for row in profile.rows} == {
        (kind, samples) for kind in KINDS for samples in (1, 2)
    }
    for row in profile.rows:
        assert row.backward == pytest.approx(2 * row.forward)
    assert profile.devices["mine"].bandwidth == BANDWIDTH
    assert profile.devices["mine"].operations == pytest.approx(PEAK)
    assert profile.optimizer == {("mine", 1): STEP}
    assert profile.kept["block", 1] > MODEL.kept_bytes("block")
    assert profile.origins["mine"]["torch"] == torch.__version__
    assert mine.left_out == []


def test_times_in_proportion_scale_without_error(monkeypatch: pytest.MonkeyPatch) -> None:
    profile, _ = measured(monkeypatch, lambda layers, call: work(layers))
    assert profile.errors["mine", "micro-batch"] == pytest.approx(0.0, abs=1e-9)
    assert profile.layer(MODEL, "mine", "block", 8, 1).error == pytest.approx(0.0, abs=1e-9)


def test_the_error_of_scaling_is_that_of_the_shapes_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slower(layers: Layers, call: int) -> float:
        held_out = layers.input.shape[0] == 4 or layers.model.hidden < MODEL.hidden
        return work(layers) * (1.25 if held_out else 1.0)

    profile, _ = measured(monkeypatch, slower)
    assert profile.errors["mine", "micro-batch"] == pytest.approx(0.2)
    assert profile.layer(MODEL, "mine", "block", 8, 1).error == pytest.approx(0.2)
    half = half_of(MODEL)
    assert half is not None
    assert profile.layer(half, "mine", "block", 2, 1).error == pytest.approx(
        max(profile.errors["mine", "model"], 0.2)
    )
    again = Profile.parse(profile.text())
    assert again == profile


@pytest.mark.parametrize("wrong", [0.0, 1e-12, -1.0])
def test_an_impossible_time_is_measured_again(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_wrong(layers: Layers, call: int) -> float:
        return wrong if call == 1 and layers.kind == "block" else work(layers)

    profile, _ = measured(monkeypatch, first_wrong)
    times = profile.layer(MODEL, "mine", "block", 1, 1)
    assert times.forward > 1e-3


def test_a_time_that_stays_impossible_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def always(layers: Layers, call: int) -> float:
        calls.append(call)
        return 1e-12 if layers.kind == "head" else work(layers)

    with pytest.raises(hetcomm.InvalidArgumentError, match=r"head, micro-batch 1: .*peak.*1e-12"):
        measured(monkeypatch, always)
    assert max(calls) == ATTEMPTS
    monkeypatch.setattr(sys.modules[__name__], "STEP", 0.0)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"seconds of the optimizer: .* got 0"):
        measured(monkeypatch, lambda layers, call: work(layers))


def test_a_larger_micro_batch_is_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def falling(layers: Layers, call: int) -> float:
        disturbed = layers.kind == "block" and layers.input.shape[0] == 1 and call < ATTEMPTS
        return work(layers) * (10 if disturbed else 1)

    profile, _ = measured(monkeypatch, falling)
    small, large = (profile.layer(MODEL, "mine", "block", samples, 1) for samples in (1, 2))
    assert small.forward < large.forward and profile.raised == []
    always, _ = measured(monkeypatch, lambda layers, call: 1.0 / layers.input.shape[0])
    small, large = (always.layer(MODEL, "mine", "block", samples, 1) for samples in (1, 2))
    assert small == large and len(always.raised) == 2 * len(KINDS)


def test_causal_attention_may_skip_half_of_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    long = replace(MODEL, flash=True, sequence=2048)

    def skipping(layers: Layers, call: int) -> float:
        if layers.kind == "block" and layers.model == long:
            samples, scores = layers.input.shape[0], 2.0 * long.sequence**2 * long.hidden
            return samples * (long.operations("block") - scores) / PEAK
        return work(layers)

    profile, _ = measured(monkeypatch, skipping, long)
    assert profile.devices["mine"].operations > 1.5 * PEAK
    assert profile.layer(long, "mine", "block", 1, 1).error == 0


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    room = measurement.needed(MODEL, "block", 2) + 1
    monkeypatch.setattr(measurement, "free_memory", lambda *rest: room)
    wide = replace(MODEL, vocabulary=16)
    profile, mine = measured(monkeypatch, lambda layers, call: work(layers), wide)
    assert mine.left_out == ["block, micro-batch 4: the memory is too small"]
    assert ("mine", "micro-batch") in profile.errors
    monkeypatch.setattr(measurement, "free_memory", lambda *rest: 1)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"embedding, micro-batch 1: .*mem"):
        measured(monkeypatch, lambda layers, call: work(layers), wide)


def test_kinds_of_devices_have_the_names_of_the_cluster_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setenv("HETCOMM_VENDOR", "red")
    assert device.find() == ("red", cpu)
    monkeypatch.setenv("HETCOMM_EMULATED_KIND", "A100")
    assert device.find() == ("A100", cpu)


def test_a_gpu_that_torch_does_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_VENDOR", "nvidia")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"nvidia 2: .* got 0; install torch"):
        device.find()


def test_halves_are_whole_models() -> None:
    grouped = replace(MODEL, key_value_heads=2)
    half = half_of(grouped)
    assert half is not None
    assert (half.hidden, half.heads, half.key_value_heads, half.feed_forward) == (32, 2, 1, 128)
    assert half_of(replace(MODEL, heads=1)) is None
    assert half_of(replace(MODEL, key_value_heads=1)) is None
