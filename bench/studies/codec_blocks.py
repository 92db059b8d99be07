"""Tables of docs/codecs.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from studies import sentences
from studies.codecs import CALLS, DTYPES, LOSSY
from studies.model import Verdict
from studies.stored import Result, Results, in_words
from studies.tables import table

HALF = ("bfloat16", "float16")


def origin(result: Result) -> str:
    """Where the figures of a table are from. A quick run says so."""
    text = f"Measured on {sentences.machine(result)}."
    if result.quick:
        text = f"From a quick run, no measurement: `{result.command}`. {text}"
    return text


def _by_case(result: Result, kind: str) -> dict[str, Verdict]:
    return {each.case: each for each in result.of(kind)}


def _rate(result: Result, codec: str, dtype: str, call: str, share: bool = True) -> str:
    """ "19.7, 1.31": GB/s of elements, and the share of a copy's rate; "-" if not measured."""
    found = _by_case(result, "copies").get(f"one core, {codec} {dtype}, {call}")
    if found is None:
        return "-"
    rate = result.bars[f"{codec} {dtype}: bytes"] / found.ours * 1e-9
    return f"{rate:.1f}, {found.best / found.ours:.2f}" if share else f"{rate:.1f}"


def _fewer(result: Result, codec: str, dtype: str) -> str:
    return f"{result.bars[f'{codec} {dtype}: ratio']:.2f}x"


def lossless(results: Results) -> str:
    result = results["codec-rates"]
    calls = ("encode", "decode")
    rows = [
        [dtype, _fewer(result, "lossless", dtype)]
        + [_rate(result, "lossless", dtype, call) for call in calls]
        for dtype in DTYPES
    ]
    heads = ["dtype", "fewer bytes", *(f"{call}, of a copy" for call in calls)]
    return f"{table(heads, rows)}\n\n{origin(result)}"


def lossy(results: Results) -> str:
    result = results["codec-rates"]
    rows = [
        [f"`{codec}`", _fewer(result, codec, "float32")]
        + [f"{100 * result.bars[f'{codec} float32: error']:.2g} %"]
        + [_rate(result, codec, "float32", call) for call in CALLS.values()]
        for codec in LOSSY
    ]
    return table(["codec", "fewer bytes", "error", *CALLS.values()], rows)


def of_halves(results: Results) -> str:
    """Codecs of 16-bit elements."""
    result = results["codec-rates"]
    rows = [
        [f"`{codec}`", dtype, _fewer(result, codec, dtype)]
        + [_rate(result, codec, dtype, call, share=False) for call in CALLS.values()]
        for dtype in HALF
        for codec in LOSSY
        if f"{codec} {dtype}: ratio" in result.bars
    ]
    return table(["codec", "dtype", "fewer bytes", *CALLS.values()], rows)


def _links(
    result: Result, heads: Sequence[str], lines: Sequence[tuple[tuple[str, ...], Sequence[str]]]
) -> str:
    """Rows for each layout. lines: the labels of a row, and the cases of its columns."""
    found = _by_case(result, "codec")
    rows = []
    for where in dict.fromkeys(each.where for each in found.values()):
        for labels, columns in lines:
            cases = [found.get(f"{where}, {each}") for each in columns]
            if any(cases):
                ratios = [f"{each.ratio:.2f}x" if each else "-" for each in cases]
                rows.append([in_words(where), *labels, *ratios])
    return table(["ranks", *heads], rows)


def lossless_links(results: Results) -> str:
    result = results["codec-links"]
    lines = [
        ((data,), [f"{dtype} {data}, lossless" for dtype in DTYPES])
        for data in ("gradients", "random bits")
    ]
    calls = f"An all_reduce has {result.bars['bytes'] / 1e6:g} MB."
    return f"{_links(result, ['data', *DTYPES], lines)}\n\n{calls} {origin(result)}"


def lossy_links(results: Results) -> str:
    columns = [f"float32 gradients, {codec}" for codec in LOSSY]
    return _links(results["codec-links"], [f"`{codec}`" for codec in LOSSY], [((), columns)])


BLOCKS: dict[str, Callable[[Results], str]] = {
    "codec-rates/lossless": lossless,
    "codec-rates/lossy": lossy,
    "codec-rates/16 bits": of_halves,
    "codec-links/lossless": lossless_links,
    "codec-links/lossy": lossy_links,
}
