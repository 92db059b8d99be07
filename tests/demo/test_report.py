"""Comparison, tables, JSON and picture on made-up runs."""

import dataclasses
import json
import math
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hetcomm.demo import codecs, plot, report
from hetcomm.demo.machine import describe_machine
from hetcomm.demo.training import Comparison, Training, read_lines, read_training

STEPS = 20


def training(backend: str, layout: str = "ddp", shift: float = 0.0, pace: float = 1.0) -> Training:
    return Training(
        layout=layout,
        backend=backend,
        losses=[5.0 - step / 10 + shift * (step >= 7) for step in range(STEPS)],
        seconds=[9.0] * 3 + [pace] * (STEPS - 3),
        network_bytes=[10**9] + [33_000_000] * (STEPS - 1),
        parameters=4_000_000,
    )


def comparisons(shift: float = 0.0) -> list[Comparison]:
    return [
        Comparison(training("slow", layout), training("fast", layout, shift, 0.5), tolerance=1e-4)
        for layout in ("ddp", "pipeline")
    ]


def encoded() -> list[Comparison]:
    """int8 halves the time and the bytes, and changes the loss a little."""
    plain = dataclasses.replace(training("fast"), codec="none")
    changed = dataclasses.replace(training("fast", "ddp", 0.01, 0.5), codec="int8")
    changed = dataclasses.replace(changed, network_bytes=[16_500_000] * STEPS)
    return [Comparison(plain, changed, codecs.tolerance_of("int8", 1e-4))]


def test_codecs_are_compared_in_table_and_json() -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(codecs.render_codecs(encoded()))
    text = console.export_text()
    for expected in ("none", "int8", "2.00x", "33.00 MB", "16.50 MB", "3.110000", "1.0e-02"):
        assert expected in text
    facts = codecs.codec_facts(encoded())["int8"]
    assert (facts["fewer_bytes"], facts["speed_up"], facts["agrees"]) == (2, 2, True)
    assert facts["last_loss"] == pytest.approx(facts["last_loss_without"] + 0.01)


def test_only_a_lossy_codec_has_a_tolerance_of_its_own() -> None:
    assert codecs.tolerance_of("lossless", 1e-4) == 1e-4
    assert codecs.tolerance_of("int8", 1e-4) == codecs.LOSSY_TOLERANCE
    assert codecs.tolerance_of("int8", 1.0) == 1.0
    broken = dataclasses.replace(encoded()[0], tolerance=1e-4)
    assert "the loss on fast, int8 is" in broken.disagreement()


def test_medians_leave_the_warm_up_out() -> None:
    comparison = comparisons()[0]
    assert comparison.baseline.step_seconds == 1.0
    assert comparison.baseline.step_bytes == 33_000_000
    assert comparison.speed_up == 2.0


def test_equal_losses_agree_within_rounding() -> None:
    comparison = comparisons(shift=2e-6)[0]
    assert comparison.agrees
    assert comparison.largest_difference == pytest.approx(2e-6)


def test_diverging_losses_are_named_with_their_step() -> None:
    comparison = comparisons(shift=0.01)[0]
    assert not comparison.agrees
    assert "ddp: from step 7 the loss on fast is 4.31" in comparison.disagreement()


@given(st.integers(0, STEPS - 1), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_nan_loss_never_agrees(step: int, loss: float) -> None:
    broken = training("fast")
    broken.losses[step] = loss
    comparison = Comparison(training("slow"), broken, tolerance=1e-4)
    assert not comparison.agrees
    assert f"from step {step} " in comparison.disagreement()


def test_a_growing_file_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert read_lines(metrics) == []
    metrics.write_text('{"step": 0, "loss": 1.0, "seconds": 2.0}\n{"step": 1, "lo')
    assert [record["step"] for record in read_lines(metrics)] == [0]
    with pytest.raises(ValueError, match="expected 2 steps and a summary"):
        read_training(metrics, "ddp", "gloo", 2)


def test_tables_name_both_backends_and_the_speed_up() -> None:
    console = Console(width=100, record=True, file=StringIO())
    console.print(report.render(comparisons(shift=2e-6)))
    text = console.export_text()
    for expected in ("slow", "fast", "2.00x", "33.00 MB", "1000 ms", "500 ms", "2.0e-06"):
        assert expected in text


def test_tables_fit_a_terminal_without_unicode() -> None:
    buffer = BytesIO()
    screen = TextIOWrapper(buffer, encoding="ascii")
    console = Console(width=100, file=screen)
    console.print(report.render(comparisons(), console.encoding))
    screen.flush()
    assert b"speed-up" in buffer.getvalue()


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=200), st.integers(1, 60))
def test_sparkline_keeps_its_width_and_order(values: list[float], width: int) -> None:
    line = report.sparkline(values, width)
    assert len(line) == min(width, len(values))
    rising = report.sparkline(sorted(values), width)
    assert list(rising) == sorted(rising)


def test_json_holds_every_step_and_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    report.write_json(path, comparisons(), {"machine": describe_machine()})
    written = json.loads(path.read_text())
    assert written["machine"]["cores"] >= 1
    assert written["layouts"]["pipeline"]["speed_up"] == 2.0
    assert len(written["layouts"]["ddp"]["candidate"]["losses"]) == STEPS


def test_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "demo.png"
    plot.write_plot(path, comparisons(), encoded(), "two hosts")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
