"""Codecs: rates of one core beside copies, and times over a link beside calls without a codec.

The data are the gradients of the demo's model, which the first use trains.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.bench import BenchError
from hetcomm.bench.data import gradients_file
from studies import running
from studies.model import Layout, Outcome, Plan, Special, Verdict

DTYPES = ("float32", "bfloat16", "float16")
LOSSY = tuple(name for name in _core.codecs() if not _core.is_lossless(name))
CALLS = {
    "encode": "encode",
    "encode_residual": "encode with residual",
    "decode": "decode",
    "decode_add": "decode and add",
}
CORE, COPY, PLAIN = "one core", "a copy of the bytes", "no codec"
QUICK_RATES = ("--seconds", "0.02")
BYTES, ROUNDS = 64_000_000, 5  # of an all_reduce over a link
QUICK_BYTES, QUICK_ROUNDS = 16_000_000, 1


def _data() -> Path:
    try:
        return gradients_file(lambda text: print(text, flush=True))
    except (BenchError, _core.InvalidArgumentError) as error:
        raise RuntimeError(str(error)) from None


def rates(plan: Plan, outcomes: list[Outcome]) -> Special:
    """Verdicts beside copies. Bars: "int8 float32: ratio" of bytes, ": error", ": bytes"."""
    with tempfile.TemporaryDirectory(prefix="hetcomm-study-") as folder:
        report = Path(folder) / "codecs.json"
        program = [sys.executable, "-P", str(running.HERE.parent / "codecs.py")]
        options = ["--data", str(_data()), "--output", str(report)]
        command = [*program, *options, *(QUICK_RATES if plan.quick else ())]
        if why := running.supervised(command, running.environment()):
            raise RuntimeError(f"codecs.py: {why}")
        rows: list[dict[str, Any]] = json.loads(report.read_text())["rows"]
    bars: dict[str, float] = {}
    verdicts = []
    for row in rows:
        if row["data"] == "random bits":
            continue
        of = f"{row['codec']} {row['dtype']}"
        size = row["elements"] * _core.Dtype.__members__[row["dtype"]].size
        bars |= {f"{of}: bytes": size, f"{of}: ratio": row["ratio"], f"{of}: error": row["error"]}
        for key, words in CALLS.items():
            if f"{key}_share_of_copy" in row:
                ours, share = size / row[f"{key}_bytes_per_second"], row[f"{key}_share_of_copy"]
                what = f"{of}, {words}"
                verdicts.append(
                    Verdict("copies", CORE, what, ours, COPY, ours * share, 1 / share, "-", None)
                )
    return bars, verdicts


@dataclass(frozen=True)
class Link:
    """A job over a link. random: also of random bits."""

    layout: Layout
    codecs: tuple[str, ...]
    dtypes: tuple[str, ...] = DTYPES[:1]
    random: bool = False


SLOW, FAST = Layout("2+2", ("1gbit",)), Layout("2+2", ("5gbit",))
LINKS = (
    *(
        Link(layout, LOSSY)
        for layout in (
            SLOW,
            Layout("2+2", ("1gbit",), "interleaved"),
            FAST,
            Layout("1+1", ("5gbit",)),
        )
    ),
    *(Link(layout, ("lossless",), DTYPES, random=True) for layout in (SLOW, FAST)),
)


def links(plan: Plan, outcomes: list[Outcome]) -> Special:
    """Verdicts of each codec beside the same calls without a codec, of the same job. A bar: the
    "bytes" of a call."""
    size, rounds = (QUICK_BYTES, QUICK_ROUNDS) if plan.quick else (BYTES, ROUNDS)
    verdicts = []
    for link in LINKS:
        where = link.layout.describe()
        print(f"codec-links: {where}: {', '.join(link.codecs)}", flush=True)
        words = ["--data", str(_data()), "--codecs", *link.codecs, "--dtypes", *link.dtypes]
        words += [] if link.random else ["--no-random-bits"]
        words += ["--bytes", str(size), "--rounds", str(rounds)]
        found = running.on_cluster(link.layout, "codec_links", *words)
        del found["congestion"]
        for what, seconds in found.items():
            plain = seconds.pop("none")
            for codec, ours in seconds.items():
                verdicts.append(
                    Verdict(
                        "codec", where, f"{what}, {codec}", ours, PLAIN, plain, plain / ours, "-",
                        None,
                    )
                )  # fmt: skip
    return {"bytes": size}, verdicts
