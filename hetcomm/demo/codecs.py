"""The demo's third comparison: gradients encoded between the islands, beside plain hetcomm."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from hetcomm import _core
from hetcomm.demo.report import LAYOUT_TITLES, as_dictionary, bars_of, bridge_bytes, curves
from hetcomm.demo.training import Comparison, Training

CODECS = ("lossless", "int8")
# A lossy codec changes the training a little, and a longer training more. In the demo's 60 steps
# the losses with int8 and feedback differ by less than 0.001.
LOSSY_TOLERANCE = 0.1


def tolerance_of(codec: str, exact: float) -> float:
    """The largest permitted difference of losses. exact: without a lossy codec."""
    return exact if _core.is_lossless(codec) else max(exact, LOSSY_TOLERANCE)


def fewer_bytes(comparison: Comparison) -> float | None:
    """Bytes over the bridge without the codec, over those with it; None if nobody counted them."""
    plain, encoded = comparison.baseline.step_bytes, comparison.candidate.step_bytes
    return plain / encoded if plain and encoded else None


def codec_table(comparisons: Sequence[Comparison]) -> Table:
    """comparisons: with each codec, of one baseline without."""
    baseline = comparisons[0].baseline
    table = Table(
        title=f"Codecs between the islands, {baseline.backend}, {LAYOUT_TITLES[baseline.layout]}",
        title_justify="left",
    )
    table.add_column("codec", no_wrap=True)
    for heading in (
        "step", "bridge,\nper step", "fewer\nbytes", "speed-up", "last\nloss",
        "largest loss\ndifference",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)

    def row(training: Training, fewer: str = "", faster: str = "", difference: str = "") -> None:
        step, last = f"{training.step_seconds * 1e3:.0f} ms", f"{training.losses[-1]:.6f}"
        name = training.codec
        table.add_row(name, step, bridge_bytes(training), fewer, faster, last, difference)

    row(baseline)
    for comparison in comparisons:
        fewer = fewer_bytes(comparison)
        row(
            comparison.candidate,
            f"{fewer:.2f}x" if fewer else "-",
            f"{comparison.speed_up:.2f}x",
            f"{comparison.largest_difference:.1e}",
        )
    return table


def render_codecs(comparisons: Sequence[Comparison], encoding: str = "utf-8") -> RenderableType:
    """The loss curves, and codec_table()."""
    runs = [comparisons[0].baseline, *(each.candidate for each in comparisons)]
    return Group(curves(runs, bars_of(encoding)), "", codec_table(comparisons))


def codec_facts(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """For JSON, by codec. The baseline has the codec "none"."""
    return {
        comparison.candidate.codec: {
            "speed_up": comparison.speed_up,
            "fewer_bytes": fewer_bytes(comparison),
            "last_loss": comparison.candidate.losses[-1],
            "last_loss_without": comparison.baseline.losses[-1],
            "largest_loss_difference": comparison.largest_difference,
            "tolerance": comparison.tolerance,
            "agrees": comparison.agrees,
            "candidate": as_dictionary(comparison.candidate),
        }
        for comparison in comparisons
    }
