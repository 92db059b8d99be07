"""Rates, ratios and errors of the codecs on one core, beside a copy of the same bytes.

    python -m hetcomm.demo.gradients --output gradients.npz
    python bench/codecs.py --data gradients.npz --output codecs.json

Rates are bytes of elements over the best time of many calls. The copy runs right before each codec,
so that shares hold on a busy machine. `ratio` is bytes of elements over bytes of the result.
`error` is the norm of what one encoding changes, over the norm of the elements. Lossy codecs also
encode with a residual, and add what they decode to other elements. The study codec-rates repeats
the figures of docs/codecs.md by this program. Without --data the elements are
normal numbers. Lossless codecs get random bits, too; lossy ones have a fixed length.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from hetcomm import _core
from hetcomm.timing import seconds_of

DTYPES = ("float32", "bfloat16", "float16")
RANDOM = "random bits"


def as_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """The bytes of float32 values in another dtype; bfloat16 rounds to nearest even."""
    if dtype == "float32":
        return values.view(np.uint8)
    target: np.ndarray = np.empty(2 * values.size, np.uint8)
    types = _core.Dtype.__members__
    _core.cast(types[dtype], target, types["float32"], values)
    return target


def inputs(data: Path | None, most: int) -> dict[str, np.ndarray]:
    """float32 arrays of at most so many elements, by name."""
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 1 << 32, most, np.uint32).view(np.float32)
    if data is None:
        return {"normal": generator.normal(0, 1e-3, most).astype(np.float32), RANDOM: bits}
    with np.load(data) as file:
        return {name: file[name][:most].copy() for name in file.files} | {RANDOM: bits}


def best(seconds: float, call: Callable[[], object]) -> float:
    """Seconds of the fastest call within `seconds`, three calls at least."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        taken.append(seconds_of(call))
    return min(taken)


def encodes(codec: str, dtype: str) -> bool:
    try:
        return _core.codec_capacity(codec, _core.Dtype.__members__[dtype], 1) > 0
    except _core.InvalidArgumentError:
        return False


def relative_error(dtype: str, data: np.ndarray, back: np.ndarray) -> float:
    """The norm of the change over that of the data."""
    types = _core.Dtype.__members__
    count = data.size // types[dtype].size
    wide, wide_back = np.empty(count), np.empty(count)
    for target, source in ((wide, data), (wide_back, back)):
        _core.cast(types["float64"], target.view(np.uint8), types[dtype], source)
    return float(np.linalg.norm(wide_back - wide) / np.linalg.norm(wide))


def measure(
    codec: str, name: str, values: np.ndarray, dtype: str, seconds: float
) -> dict[str, object]:
    kind = _core.Dtype.__members__[dtype]
    random = name == RANDOM
    data = values.view(np.uint8)[: values.size * kind.size] if random else as_dtype(values, dtype)
    count = data.size // kind.size
    room: np.ndarray = np.empty(_core.codec_capacity(codec, kind, count), np.uint8)
    back = np.empty_like(data)
    encoded = room[: _core.codec_encode(codec, kind, room, data)]
    copy = best(seconds, partial(np.copyto, back, data))
    calls = {
        "encode": partial(_core.codec_encode, codec, kind, room, data),
        "decode": partial(_core.codec_decode, codec, kind, back, encoded),
    }
    if not _core.is_lossless(codec):
        residual, total = np.zeros(count, np.float32), data.copy()
        calls["encode_residual"] = partial(_core.codec_encode, codec, kind, room, data, residual)
        calls["decode_add"] = partial(_core.codec_sum, codec, kind, total, total, [encoded])
    taken = {key: best(seconds, call) for key, call in calls.items()}
    _core.codec_encode(codec, kind, room, data)
    _core.codec_decode(codec, kind, back, encoded)
    if _core.is_lossless(codec) and not np.array_equal(back, data):
        raise RuntimeError(f"{name} {dtype}: other bits came back")
    return {
        "codec": codec,
        "data": name,
        "dtype": dtype,
        "elements": count,
        "ratio": data.size / encoded.size,
        "error": 0.0 if _core.is_lossless(codec) else relative_error(dtype, data, back),
        "copy_bytes_per_second": data.size / copy,
        **{f"{key}_bytes_per_second": data.size / one for key, one in taken.items()},
        **{f"{key}_share_of_copy": copy / one for key, one in taken.items()},
    }


def print_table(rows: list[dict[str, object]]) -> None:
    columns = ("encode", "encode_residual", "decode", "decode_add")
    print("GB/s of elements, and the share of a copy:")
    titles = ("encode", "with residual", "decode", "and add")
    print(
        "{:12}{:9}{:9}{:>7}{:>9}".format("data", "dtype", "codec", "ratio", "error")
        + "".join(f"{title:>14}" for title in titles)
    )
    for row in rows:
        line = f"{row['data']:12}{row['dtype']:9}{row['codec']:9}{row['ratio']:7.2f}"
        line += f"{row['error']:9.1e}" if row["error"] else f"{'none':>9}"
        for column in columns:
            rate, share = row.get(f"{column}_bytes_per_second"), row.get(f"{column}_share_of_copy")
            known = rate is not None and share is not None
            text = f"{float(str(rate)) / 1e9:.2f} {float(str(share)):5.2f}" if known else "-"
            line += f"{text:>14}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="arrays of float32 in an .npz file")
    parser.add_argument(
        "--codecs", nargs="*", default=_core.codecs()[2:], help="such as int8:128; usually all"
    )
    parser.add_argument("--elements", type=int, default=4 << 20, help="the most of one figure")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    rows = [
        measure(codec, name, values, dtype, arguments.seconds)
        for name, values in inputs(arguments.data, arguments.elements).items()
        for dtype in DTYPES
        for codec in arguments.codecs
        if encodes(codec, dtype) and (name != RANDOM or _core.is_lossless(codec))
    ]
    print_table(rows)
    if arguments.output:
        machine = platform.processor() or platform.machine()
        report = {"machine": machine, "set": _core.instruction_set(), "rows": rows}
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
