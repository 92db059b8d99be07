"""Measured times: their file, their bounds, and their scaling to other shapes."""

from dataclasses import replace

import pytest
from planned import DEVICES, MODEL, profile

import hetcomm
from hetcomm.plan import Device, Model, Profile, Row
from hetcomm.plan.join import join
from hetcomm.plan.profile import LOSS_PASSES, HostWork


def of(*rows: Row) -> Profile:
    return Profile(MODEL, DEVICES, rows)


def test_a_saved_profile_loads_as_it_was(tmp_path) -> None:
    mine = replace(
        profile(),
        kept={("block", 2): 1234.0},
        errors={("fast", "micro-batch"): 0.03},
        origins={"fast": {"torch": "2.6.0"}},
        host_work={"fast": HostWork(5e-5, 4e-5, 3e-10)},
    )
    mine.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == mine


HUGE = profile().text().replace('"block", 1, 1', f'"block", 1{"0" * 400}, 1')


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"hetcomm step profile": 1}', '{"model": 1}', pytest.param(HUGE, id="huge")],
)
def test_other_files_are_refused(text: str, tmp_path) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"p\.json.*hetcomm profile"):
        Profile.load(tmp_path / "p.json")


@pytest.mark.parametrize("content", [b"\x89PNG\r\n", b"[" * 100_000])
def test_files_that_are_no_text_and_deep_ones_are_refused(content: bytes, tmp_path) -> None:
    file = tmp_path / "p.json"
    file.write_bytes(content)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"p\.json.*hetcomm profile"):
        Profile.load(file)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"p\.json"):
        Model.load(file)


def test_measured_times_come_back() -> None:
    times = profile().layer(MODEL, "slow", "block", 4, 2)
    assert (times.forward, times.backward, times.error) == (4.0, 8.0, 0.0)


def test_times_are_linear_between_and_proportional_beyond_measurements() -> None:
    mine = of(Row("fast", "block", 2, 1, 1.0, 2.0), Row("fast", "block", 4, 1, 1.5, 4.0))
    assert mine.layer(MODEL, "fast", "block", 3, 1).forward == pytest.approx(1.25)
    larger = mine.layer(MODEL, "fast", "block", 8, 1)
    assert (larger.forward, larger.backward) == (3.0, 8.0)
    smaller = mine.layer(MODEL, "fast", "block", 1, 1)
    assert (smaller.forward, smaller.backward) == (0.75, 1.0)
    assert smaller.error > 0 and larger.error > 0


def test_another_tensor_degree_takes_the_time_of_equal_work() -> None:
    mine = of(Row("fast", "block", 2, 2, 1.0, 2.0), Row("fast", "block", 4, 2, 1.5, 4.0))
    other = mine.layer(MODEL, "fast", "block", 2, 1)
    assert (other.forward, other.backward) == (1.5, 4.0)
    assert other.error == pytest.approx(0.2)


def test_measured_errors_of_scaling_replace_the_assumed_ones() -> None:
    errors = {("fast", "micro-batch"): 0.03, ("fast", "model"): 0.07}
    mine = replace(profile(), errors=errors)
    twice = replace(MODEL, hidden=128, feed_forward=512)
    assert mine.layer(MODEL, "fast", "block", 64, 1).error == 0.03
    assert mine.layer(MODEL, "fast", "block", 3, 1).error == 0.03
    assert mine.layer(twice, "fast", "block", 4, 1).error == 0.07
    assert mine.layer(MODEL, "fast", "block", 4, 4).error == 0.2  # no degree was held out
    assert mine.layer(MODEL, "slow", "block", 64, 1).error == 0.1


def test_devices_measured_apart_join() -> None:
    whole = replace(
        profile(),
        errors={("slow", "model"): 0.1},
        origins={name: {"torch": name} for name in DEVICES},
        kept={("block", 1): 10.0},
        host_work={"slow": HostWork(5e-5, 4e-5, 3e-10)},
    )
    fast, slow = whole.without(["slow"]), whole.without(["fast"])
    assert list(fast.devices) == ["fast"] and fast.errors == {}
    joined = join([fast, replace(slow, kept={("block", 1): 20.0})])
    assert joined == replace(whole, kept={("block", 1): 20.0})


def test_unlike_profiles_do_not_join() -> None:
    other = replace(profile().without(["fast"]), model=replace(MODEL, vocabulary=511))
    with pytest.raises(
        hetcomm.InvalidArgumentError, match="one model, got one with vocabulary=511"
    ):
        join([profile().without(["slow"]), other])
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"got \['fast'\] in several"):
        join([profile(), profile().without(["slow"])])


def test_another_model_takes_the_time_of_equal_work() -> None:
    twice = replace(MODEL, hidden=128, feed_forward=512)
    ratio = twice.operations("block") / MODEL.operations("block")
    times = profile().layer(twice, "fast", "block", 4, 1)
    assert times.forward == pytest.approx(4 * ratio)
    assert times.error == pytest.approx(0.2)


def test_the_loss_grows_with_the_logits_and_not_with_the_width() -> None:
    bandwidth = 1e6
    device = {"fast": Device(1e12, bandwidth, 1e9)}
    logits = MODEL.sequence * MODEL.vocabulary * 4
    loss = [count * logits / bandwidth for count in LOSS_PASSES]
    rows = [Row("fast", "head", b, 1, b * (1 + loss[0]), b * (2 + loss[1])) for b in (1, 2, 4)]
    wide = replace(MODEL, hidden=128, feed_forward=512)
    times = Profile(MODEL, device, tuple(rows)).layer(wide, "fast", "head", 2, 1)
    assert times.forward == pytest.approx(2 * (2 * 1 + loss[0]))
    assert times.backward == pytest.approx(2 * (2 * 2 + loss[1]))


def test_a_time_above_that_of_a_larger_micro_batch_is_replaced() -> None:
    mine = of(Row("fast", "block", 1, 1, 3.0, 1.0), Row("fast", "block", 2, 1, 2.0, 4.0))
    times = mine.layer(MODEL, "fast", "block", 1, 1)
    assert (times.forward, times.backward) == (2.0, 1.0)
    assert len(mine.raised) == 1 and "micro-batch 1: forward -> 2 s" in mine.raised[0]


def test_an_embedding_takes_no_less_than_to_write_its_gradient() -> None:
    mine = of(Row("fast", "embedding", 1, 1, 1.0, 0.0))
    table = MODEL.vocabulary * MODEL.hidden * 4
    assert mine.layer(MODEL, "fast", "embedding", 1, 1).backward == pytest.approx(4 * table / 1e12)
    assert "backward" in mine.raised[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row("fast", "block", 1, 1, 1e-9, 1.0), "at the device's peak, or more, got 1e-09"),
        (Row("fast", "block", 1, 1, 0.0, 1.0), "a finite number above 0, got 0"),
        (Row("fast", "block", 1, 1, 1.0, float("nan")), "a finite number above 0, got nan"),
        (Row("fast", "block", 1, 1, -1.0, 1.0), "above 0, got -1"),
        (Row("fast", "norm", 1, 1, 1.0, 1.0), "a layer out of embedding, block, head"),
        (Row("none", "block", 1, 1, 1.0, 1.0), "a device out of .*describe the device"),
        (Row("fast", "block", 0, 1, 1.0, 1.0), "micro-batch: expected .*at least 1"),
    ],
)
def test_rows_that_cannot_be_are_refused(row: Row, message: str) -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=message):
        of(row)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), "fast"])
def test_figures_that_cannot_be_are_refused(wrong: object) -> None:
    device = replace(DEVICES["fast"], bandwidth=wrong)
    with pytest.raises(hetcomm.InvalidArgumentError, match="bandwidth of fast: expected a finite"):
        Profile(MODEL, {"fast": device}, ())


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"optimizer": {("fast", 1): -1e-9}}, "optimizer of fast, 1 ranks: expected .*got -1e-09"),
        ({"optimizer": {("fast", 1): 10**400}}, "optimizer of fast, 1 ranks: expected a finite"),
        ({"optimizer": {("fast", 0): 1e-9}}, "optimizer of fast: tensor degree: .*at least 1"),
        ({"kept": {("block", 1): "many"}}, "kept of block, 1 ranks: expected a finite .*got many"),
        ({"errors": {("fast", "model"): -0.1}}, "error of fast, another model: expected a finite"),
        ({"host_work": {"fast": HostWork(1e-5, -1e-5, 0.0)}}, r"host_work\.message of fast: "),
    ],
)
def test_figures_below_0_and_texts_are_refused(figures: dict, message: str) -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=message):
        replace(profile(), **figures)


def test_a_missing_measurement_names_the_command() -> None:
    mine = of(Row("fast", "block", 1, 1, 1.0, 1.0))
    for ask in (
        lambda: mine.layer(MODEL, "slow", "block", 1, 1),
        lambda: mine.layer(MODEL, "fast", "head", 1, 1),
        lambda: mine.step_seconds("fast", 1, 10),
    ):
        with pytest.raises(hetcomm.InvalidArgumentError, match=r"hetcomm profile .* --device "):
            ask()


def test_a_missing_kind_of_layer_names_the_devices_that_have_it() -> None:
    mine = of(Row("fast", "block", 1, 1, 1.0, 1.0), Row("slow", "head", 1, 1, 1.0, 1.0))
    text = "head on fast: expected measured times, got times of head on slow only; measure"
    with pytest.raises(hetcomm.InvalidArgumentError, match=text):
        mine.layer(MODEL, "fast", "head", 1, 1)
    with pytest.raises(hetcomm.InvalidArgumentError, match="got times of embedding on no device"):
        mine.layer(MODEL, "fast", "embedding", 1, 1)


def test_kept_activations_are_measured_or_computed() -> None:
    mine = replace(profile(), kept={("block", 2): 1234.0})
    assert mine.kept_bytes(MODEL, "block", 2) == 1234.0
    assert mine.kept_bytes(MODEL, "block", 1) == MODEL.kept_bytes("block", 1)
    other = Model(4, 64, 4, 64, 512, 256)
    assert mine.kept_bytes(other, "block", 2) == other.kept_bytes("block", 2)
