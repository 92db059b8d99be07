"""The studies of codecs, and the tables that are made of their results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from studies import codec_blocks, codecs, panels, sentences
from studies.codecs import Link
from studies.model import Layout, Plan, Verdict
from studies.stored import Result

QUICK = Plan(quick=True)


@pytest.fixture
def gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file in place of gradients that a model must be trained for."""
    file = tmp_path / "gradients.npz"
    values = np.random.default_rng(1).normal(0, 1e-3, 100_000).astype(np.float32)
    np.savez(file, step100=values)
    monkeypatch.setattr(codecs, "gradients_file", lambda say: file)


def result_of(study: str, special: codecs.Special, quick: bool = True) -> Result:
    machine = {"cores": 2, "processor": "P", "kernel": "6.1.0", "busy": 0.0}
    facts = {"time": "2030-01-01T00:00:00Z", "commit": "f" * 40, "machine": machine, "versions": {}}
    command = f"python bench/study.py {study}{' --quick' if quick else ''}"
    bars, verdicts = special
    return Result(study, command, facts, bars=bars, verdicts=verdicts)


def rows(text: str) -> dict[str, list[str]]:
    """The cells of a table's rows by the first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines}


@pytest.mark.usefixtures("gradients")
def test_rates_of_codecs_fill_their_tables() -> None:
    result = result_of("codec-rates", codecs.rates(QUICK, []))
    results = {"codec-rates": result}
    lossy = rows(codec_blocks.lossy(results))
    assert [name.strip("`") for name in list(lossy)[2:]] == list(codecs.LOSSY)
    assert lossy["`int8`"][0] == "3.94x" and lossy["`int8`"][1].endswith(" %")
    assert "-" not in lossy["`int8`"]
    rate, share = map(float, lossy["`int8`"][2].split(", "))
    assert rate > 0 and share > 0
    assert set(codecs.DTYPES) < set(rows(codec_blocks.lossless(results)))
    assert "`int8`" in rows(codec_blocks.of_halves(results))
    assert "`bf16`" not in rows(codec_blocks.of_halves(results))
    (panel,) = panels.panels_of(result)
    assert "int8 encode" in [line.label for line in panel.lines]
    assert "encodes float32 gradients at" in sentences.of(result)


@pytest.mark.needs("namespaces", "torch")
@pytest.mark.usefixtures("gradients")
def test_times_over_links_fill_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout("1+1", ("1gbit",))
    links = (Link(layout, ("int8",)), Link(layout, ("lossless",), ("bfloat16",), random=True))
    monkeypatch.setattr(codecs, "LINKS", links)
    monkeypatch.setattr(codecs, "QUICK_BYTES", 1_000_000)
    result = result_of("codec-links", codecs.links(QUICK, []))
    assert {each.what for each in result.verdicts} == {
        "float32 gradients, int8", "bfloat16 gradients, lossless", "bfloat16 random bits, lossless",
    }  # fmt: skip
    results, where = {"codec-links": result}, "1+1 ranks over 1 Gbit/s, block"
    ratios = dict(zip(codecs.LOSSY, rows(codec_blocks.lossy_links(results))[where], strict=True))
    assert ratios.pop("int8").endswith("x") and set(ratios.values()) == {"-"}
    text = codec_blocks.lossless_links(results)
    assert f"| {where} | gradients | - | " in text and f"| {where} | random bits | - | " in text
    assert "An all_reduce has 1 MB. From a quick run" in text
    (panel,) = panels.panels_of(result)
    assert len(panel.lines) == 3
    assert sentences.of(result).startswith("Over 1 Gbit/s a codec makes")


def test_a_quick_result_says_so() -> None:
    said = [
        codec_blocks.origin(result_of("codec-links", ({}, []), quick)) for quick in (True, False)
    ]
    assert said[0].startswith(
        "From a quick run, no measurement: `python bench/study.py codec-links --quick`."
    )
    assert "QUICK RUN" in said[0]
    verdict = Verdict(
        "codec", "1gbit", "float32 gradients, int8", 1.0, "no codec", 2.0, 2.0, "-", None
    )
    assert sentences.of(result_of("codec-links", ({}, [verdict]))).endswith(
        "2.00 times as fast (QUICK RUN, no measurement)"
    )
    assert "quick" not in said[1].lower() and "commit fffffff" in said[1]
